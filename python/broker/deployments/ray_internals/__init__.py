"""Every use of private names and undocumented behaviour of Ray, Ray Serve, uvicorn and HAProxy."""
