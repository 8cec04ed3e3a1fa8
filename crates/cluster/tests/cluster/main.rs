//! A cluster of simulated nodes: real agents and rollouts, simulated daemons, and an API server that is a small one of
//! these tests or a real one.

mod api_server;
mod exchanges;
mod fleet;
mod http;
mod registry;
mod rollout;
mod simulated_daemon;
