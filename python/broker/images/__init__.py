"""Images of other servers: fetched safely, resized, converted and cropped around faces."""
