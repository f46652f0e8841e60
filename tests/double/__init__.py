"""A double of what runs functions in the cloud: the runtime API, the two gateways, and a store that can be made to fail.

    lambdas.py   runs real function binaries as the service would: one invocation at a time in each environment, a
                 deadline, retries of asynchronous invocations; and kills, freezes and repeats them on demand
    gateway.py   an HTTP API, a function URL and a WebSocket API with its callbacks, with the managed gateway's limits
    proxy.py     stands between a function and its store, counts the calls, and kills, freezes, throttles or loses
                 the reply at a chosen one

It shows what an emulator of the whole cloud does not: throttling, lost replies, the gateway's limits, and a process
that ends or sleeps at a chosen moment. Everything listens on the loopback address, on ports that the system picks.
"""
