"""The page at /: one file of the package, under a policy by which a browser loads and runs nothing else."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import Response

__all__ = ["page"]


def page() -> Response:
    raw = files("fastcore.server").joinpath("page.html").read_bytes()
    policy = [
        "default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'", f"script-src {_hash(raw, b'script')}", f"style-src {_hash(raw, b'style')}",
    ]  # fmt: skip
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(raw, headers=headers, media_type="text/html")


def _hash(raw: bytes, element: bytes) -> str:
    """The source of a policy that lets in the page's one element of this name."""
    (text,) = re.findall(b"<%b>(.*?)</%b>" % (element, element), raw, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
