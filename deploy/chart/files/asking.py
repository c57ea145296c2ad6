"""Keep a folder of one empty file for each pod of this node that asks, named by the pod's UID.

Usage: python asking.py FOLDER

Where the server does not answer nothing changes: nobody who did not ask is let in, and whoever did
keeps what it has. Files are root's, which is whose `underclock serve` believes.
"""

import json
import os
import ssl
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

_SECRETS = Path(os.environ.get("SECRETS", "/var/run/secrets/kubernetes.io/serviceaccount"))
_TIMEOUT_S = 10
_PAGE = 200


def asking(server: str, node: str, annotation: str) -> set[str]:
    """Return the UIDs of a node's pods that ask by an annotation, written KEY=VALUE.

    Raises:
        OSError: The server does not answer, or refuses.
        ValueError: It answers something else.
    """
    key, _, value = annotation.partition("=")
    found: set[str] = set()
    more = ""
    while True:
        query = {"fieldSelector": f"spec.nodeName={node}", "limit": _PAGE, "continue": more}
        request = urllib.request.Request(
            f"{server}/api/v1/pods?{urllib.parse.urlencode(query)}",
            headers={"Authorization": f"Bearer {(_SECRETS / 'token').read_text().strip()}"},
        )
        trust = None
        if server.startswith("https:"):
            trust = ssl.create_default_context(cafile=str(_SECRETS / "ca.crt"))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trust) as answer:
            pods = json.load(answer)
        for pod in pods["items"]:
            about = pod["metadata"]
            running = pod.get("status", {}).get("phase") in {"Pending", "Running"}
            if running and (about.get("annotations") or {}).get(key) == value:
                found.add(about["uid"])
        more = pods.get("metadata", {}).get("continue", "")
        if not more:
            return found


def keep(folder: Path, pods: set[str]) -> None:
    """Make a folder hold these pods and no others."""
    there = {each.name for each in folder.iterdir()}
    for pod in there - pods:
        (folder / pod).unlink()
    for pod in pods - there:
        if "/" not in pod:
            os.close(os.open(folder / pod, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644))


def main() -> None:
    """Look again and again, until it is ended."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    while True:
        try:
            keep(Path(sys.argv[1]), asking(server, os.environ["NODE"], os.environ["ANNOTATION"]))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            print(f"who asks is not known, and stays as it is: {exc!r}", flush=True)
        time.sleep(float(os.environ["EVERY_S"]))


if __name__ == "__main__":
    main()
