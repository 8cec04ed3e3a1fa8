//! The optimizer driver: pipeline, bisection, statistics.
