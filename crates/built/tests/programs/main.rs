//! Tests of built programs, one module for a subject.

mod arguments;
mod handlers;
mod script;
mod timed;
