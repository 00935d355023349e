"""HTTP servers that survive hostile input: shared by broker, sidecar, operator and webhook.

It is the only package besides those parts that imports aiohttp; the core stays free of it.
"""
