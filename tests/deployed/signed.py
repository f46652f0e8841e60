"""Requests and connections that are signed as an AWS client signs them, to APIs that ask for it."""

import httpx
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_CREDENTIALS = Credentials("test", "test")
_REGION = "us-east-1"


class Signed(httpx.Auth):
    """Signs for a service: `execute-api` for an HTTP API, `lambda` for a function URL."""

    requires_request_body = True

    def __init__(self, service):
        self._service = service

    def auth_flow(self, request):
        headers = {name: request.headers[name] for name in ("host", "content-type") if name in request.headers}
        signed = AWSRequest(request.method, str(request.url), headers=headers, data=request.content)
        SigV4Auth(_CREDENTIALS, self._service, _REGION).add_auth(signed)
        request.headers.update(dict(signed.headers))
        yield request


def signed_url(url):
    """A WebSocket's URL with its signature in the query, as a browser needs it."""
    request = AWSRequest("GET", url.replace("ws", "http", 1))
    SigV4QueryAuth(_CREDENTIALS, "execute-api", _REGION, expires=300).add_auth(request)
    return request.url.replace("http", "ws", 1)
