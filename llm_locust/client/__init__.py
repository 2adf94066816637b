"""The streaming HTTP/1.1 transport: sockets, TLS, time stamps. Only room that knows gevent's loop."""
