"""Streaming HTTP/1.1 transport: sockets, TLS, time stamps. The only room that uses gevent's loop."""
