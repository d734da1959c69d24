"""Images: what a transformation costs, and the service beside other people's servers."""
