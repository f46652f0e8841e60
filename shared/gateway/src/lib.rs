//! The WebSocket protocol as a state machine without sockets.
