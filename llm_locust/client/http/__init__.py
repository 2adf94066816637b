"""HTTP/1.1 on gevent: connections, their pool, TLS, and the clocks of received data."""
