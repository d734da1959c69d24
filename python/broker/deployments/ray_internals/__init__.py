"""What we lean on that Ray, Ray Serve, uvicorn and HAProxy do not promise, and nothing else does."""
