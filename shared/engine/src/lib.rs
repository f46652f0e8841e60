//! Streams, partitions, groups, leases, queries and cycles.
