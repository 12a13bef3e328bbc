"""What tests share: clients, upstreams, servers and short ways to write requests down."""
