"""Every message of the protocol, one module an API, loaded when it is first needed. See docs/adr/0002-messages.md."""
