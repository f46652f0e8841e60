"""Figures of a peer to compare with: a Queen 1.3.0 broker over PostgreSQL 15 with synchronous commit, 200-byte
payloads, one partition per client, closed loop, on two shared cores whose fdatasync took about 2.3 ms. Lowest and
highest of three passes; operations a second are calls for pushes, pop-and-acknowledge pairs, and whole cycles.

They give the order of magnitude on a machine of that kind, not a race on this one."""

# (operation, batch, clients): (lowest, highest) messages a second
MESSAGES_PER_SECOND = {
    ("push", 1, 1): (273, 291),
    ("push", 1, 10): (927, 1_121),
    ("push", 100, 1): (21_600, 28_100),
    ("push", 100, 10): (66_000, 86_000),
    ("pop+ack", 1, 1): (125, 170),
    ("pop+ack", 1, 10): (497, 724),
    ("pop+ack", 100, 1): (11_100, 12_300),
    ("pop+ack", 100, 10): (38_000, 54_000),
    ("cycle", 10, 1): (810, 1_080),
    ("cycle", 10, 10): (3_150, 4_100),
    ("cycle", 100, 1): (8_600, 10_000),
    ("cycle", 100, 10): (29_500, 39_800),
}
