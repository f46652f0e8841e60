"""The main job: a year of real flights through producers, a stream processor, a socket and a table.

`source` reads the flights and says what must come out; `produce`, `worker`, `drain` and `follow` are clients in
processes of their own, so that they can be killed; `tables` reads the published table; `job` runs them all.
"""
