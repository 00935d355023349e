"""The log store on Redis or Valkey: connection, script calls, checks of the server."""
