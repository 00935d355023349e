"""HTTP servers that withstand hostile input, for broker, sidecar, operator and webhook.

The core itself does not import aiohttp.
"""
