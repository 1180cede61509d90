"""Steer a Storage Gateway double, and look into it: from a test, the demo, another process.

Blocking, standard library only. Shares and gateways are named by their ARNs.
"""

import time
from typing import Any, Final

from awsdoubles.clients import ACCOUNT
from awsdoubles.controlclient import ControlClient, ControlError

__all__ = ["Control", "ControlError"]

Json = dict[str, Any]
POLL_SECONDS: Final = 0.05


class Control(ControlClient):
    """`url` is the double's address, the same that AWS_ENDPOINT_URL_STORAGE_GATEWAY holds."""

    def reset(self) -> None:
        """Forget all gateways, shares, calls and faults; settings as at the start."""
        self._call("reset")

    def settings(self, **changes: Any) -> Json:
        """Change and return the settings: the fields of `state.Settings`."""
        return dict(self._call("settings", **changes))

    def add_gateway(self, region: str = "eu-west-1") -> str:
        """A new gateway's ARN."""
        return str(self._call("add-gateway", region=region)["arn"])

    def add_share(
        self,
        gateway: str,
        *,
        bucket: str,
        prefix: str = "",
        protocol: str = "NFS",
        location: str = "",
        status: str = "AVAILABLE",
        read: bool = True,
    ) -> str:
        """A new share's ARN; with `read` somebody has opened all of its folders already.

        `location` replaces the LocationARN, for access points and their aliases; `bucket` and `prefix`
        stay what is behind it.
        """
        given = {"bucket": bucket, "prefix": prefix, "protocol": protocol, "location": location}
        return str(self._call("add-share", gateway=gateway, status=status, read=read, **given)["arn"])

    def add_access_point(
        self, name: str, *, bucket: str, region: str = "eu-west-1", account: str = ACCOUNT, lag: float = 0.0
    ) -> Json:
        """A new access point: {arn, alias}. S3 does not know it for `lag` seconds. Made again under the same
        name it has another alias."""
        given = {"name": name, "bucket": bucket, "region": region, "account": account, "lag": lag}
        return dict(self._call("add-access-point", **given))

    def remove_access_point(self, arn: str) -> None:
        """As if it had been deleted."""
        self._call("remove-access-point", arn=arn)

    def deny_access_point(self, arn: str, *, denied: bool = True) -> None:
        """Take the permission to look it up away, or give it back."""
        self._call("deny-access-point", arn=arn, denied=denied)

    def set_status(self, share: str, status: str) -> None:
        """AVAILABLE, CREATING, DELETING, UNAVAILABLE, ..."""
        self._call("set-status", share=share, status=status)

    def remove_share(self, share: str) -> None:
        """As if it had been deleted."""
        self._call("remove-share", share=share)

    def shares(self) -> list[Json]:
        """All shares, of all regions."""
        return list(self._call("shares"))

    def refreshes(self, share: str | None = None) -> list[Json]:
        """The accepted refreshes: {id, share, folders, recursive, evicts, listed, lists, heads, ...}."""
        return list(self._call("refreshes", share=share))

    def inventory(self, share: str) -> Json:
        """The cached listings: {"/folder": {"files": {name: ETag}, "folders": [name]}}."""
        return dict(self._call("inventory", share=share))

    def read(self, share: str, folder: str = "/", *, recursive: bool = True) -> Json:
        """What a reader of the share sees, as `inventory`; folders never opened are listed now."""
        return dict(self._call("read", share=share, folder=folder, recursive=recursive))

    def differences(self, share: str) -> list[str]:
        """The oracle: where a reader of the share is misled about the bucket, a sentence each."""
        return list(self.compare(share)["differences"])

    def compare(self, share: str) -> Json:
        """The oracle's answer with {differences, objects, cachedFolders, inFlight, at}."""
        return dict(self._call("differences", share=share))

    def wait_fresh(self, share: str, timeout: float = 30.0) -> Json:
        """Return once the share shows the bucket as it is and nothing runs; AssertionError otherwise."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.compare(share)
            if not found["differences"] and not found["inFlight"]:
                return found
            if time.monotonic() > deadline:
                shown = "\n  ".join(found["differences"][:20])
                raise AssertionError(
                    f"{share} is not fresh after {timeout:.0f} s, {found['inFlight']} refreshes run, "
                    f"{len(found['differences'])} differences:\n  {shown}"
                )
            time.sleep(POLL_SECONDS)

    def wait_idle(self, timeout: float = 30.0) -> None:
        """Return once no refresh runs."""
        deadline = time.monotonic() + timeout
        while any(one["completedAt"] is None for one in self.refreshes()):
            if time.monotonic() > deadline:
                raise AssertionError(f"refreshes still run after {timeout:.0f} s")
            time.sleep(POLL_SECONDS)

    def upload_event(self, share: str, key: str, queue: str, size: int = 0) -> Json:
        """Tell a queue that this share's gateway has uploaded a file (another one's input)."""
        return dict(self._call("upload-event", share=share, key=key, queue=queue, size=size))
