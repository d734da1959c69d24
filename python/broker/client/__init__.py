"""The SDK: REST calls and WebSocket subscriptions that recover, async and sync."""
