"""A watched instance is lost: the stored status drops the passed change."""

from testbed.admin import Admin
from testing.imds import SLOW, Fleet
from testing.rollouts import until


async def test_the_change_of_one_that_is_lost_has_to_pass_anew(fleet: Fleet, admin: Admin) -> None:
    made = dict(await fleet.add(4, options=SLOW))
    names = {instance: name for name, instance in made.items()}
    safety = {
        "allowLoosening": ["HopLimit"],
        "canary": {"instances": 1, "soak": "60s"},
        "maxChangesPerMinute": 2,
    }
    policy = await fleet.create(mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Passed")
    assert found["status"]["canary"]["groups"] == [], "none is left"
    assert len(found["status"]["canary"]["passed"]) == 1
    await until(lambda: len(fleet.modified()) == 2)
    lost = fleet.modified()[1]["InstanceId"]
    fleet.control.remove([lost])
    await fleet.delete(names[lost])
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert told["message"].startswith(f"InstanceLost: instance {lost} ")
    found = await policy.get()
    assert found["status"].get("canary") is None, "nothing has passed any more"
    opened, sent = found["status"]["breaker"]["openedAt"], len(fleet.modified())
    resumed = {"caretaker.dev/resume-at": f"{int(opened[:4]) + 1}{opened[4:]}"}
    await admin.patch(policy.url, {"metadata": {"annotations": resumed}})
    found = await policy.when(
        lambda f: ((f["status"].get("canary") or {}).get("groups") or [{}])[0].get("phase") == "Soaking"
    )
    assert len(fleet.modified()) == sent + 1, "its canary alone"
