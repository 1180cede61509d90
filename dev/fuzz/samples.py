"""Samples, from which recipes make inputs: one of each kind, with every field that is read."""

from typing import Any, Final

ARN: Final = "arn:aws:storagegateway:eu-west-1:123456789012:share/share-1"
RECORD: Final = {
    "eventVersion": "2.1",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "AWS:AIDA"},
    "s3": {"bucket": {"name": "media"}, "object": {"key": "in/a+b%C3%A9.csv"}},
}
S3: Final = {"Records": [RECORD]}
BRIDGE: Final = {
    "source": "aws.s3",
    "detail-type": "Object Created",
    "detail": {"bucket": {"name": "media"}, "object": {"key": "in/a b.csv"}, "reason": "PutObject"},
}
GATEWAY: Final = {
    "source": "aws.storagegateway",
    "detail-type": "Storage Gateway Refresh Cache Event",
    "resources": [ARN],
    "detail": {"notification-id": "1", "bucket-name": "media", "object-key": "in/a"},
}
SNS: Final = {"Type": "Notification", "Message": "{}"}
ECS: Final = {
    "detail-type": "ECS Container Instance State Change",
    "detail": {
        "clusterArn": "arn:aws:ecs:eu-west-1:123456789012:cluster/prod",
        "containerInstanceArn": "arn:aws:ecs:eu-west-1:123456789012:container-instance/prod/0123",
        "status": "ACTIVE",
        "version": 7,
    },
}
META: Final = {
    "name": "a",
    "namespace": "ns",
    "uid": "u",
    "resourceVersion": "7",
    "generation": 2,
    "labels": {"caretaker.dev/daemontask": "t"},
    "annotations": {"caretaker.dev/seq": "3", "caretaker.dev/node-uid": "n"},
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-01T00:00:00Z",
    "deletionGracePeriodSeconds": 30,
    "ownerReferences": [{"uid": "u", "kind": "DaemonTask", "controller": True}],
    "finalizers": ["a/b"],
}
# What authors may write into it: `ours` under caretaker.dev/, `nodes` as JSON in caretaker.dev/rerun-nodes.
_WRITTEN: Final = ("labels", "annotations", "ownerReferences", "finalizers")
MARKED: Final[tuple[Any, ...]] = tuple(
    {"metadata": {key: META[key] for key in _WRITTEN}, "ours": ours, "nodes": {"n": at}}
    for ours, at in (
        ({"rerun-at": "2026-01-01T00:00:00Z", "resume-at": "now"}, "2026-01-01T00:00:00Z"),
        ({"rerun-node": "", "ledger": "assume-done: a"}, "x"),
    )
)
CONTAINER: Final = {
    "name": "main",
    "image": "busybox",
    "env": [{"name": "A", "value": "1"}],
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
    "resources": {"requests": {"cpu": "1500m", "memory": "1.5Gi"}, "limits": {"cpu": "1e3"}},
    "securityContext": {"capabilities": {"drop": ["ALL"]}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
TEMPLATE: Final = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "t", "operator": "Equal", "value": "1", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux", "x"]},
                                {"key": "cores", "operator": "Gt", "values": ["4"]},
                            ],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                        }
                    ]
                }
            }
        },
        "volumes": [{"name": "v", "emptyDir": {}}],
        "hostNetwork": True,
        "os": {"name": "linux"},
    },
}
# A template has room for 87,000 empty items of a list.
EMPTY_PARTS: Final[dict[str, Any]] = {
    "spec": {
        "containers": [{}],
        "initContainers": [{}],
        "tolerations": [{}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
        },
        "volumes": [{}],
        "unknown": [[], [[]], 0],
    }
}
TASK: Final = {
    "template": TEMPLATE,
    "suspend": False,
    "schedule": "*/5 3 * * 1-5",
    "timeZone": "Europe/Berlin",
    "startingDeadlineSeconds": 60,
    "rerunOn": ["TemplateChange", "NodeReboot", "ReferencedDataChange"],
    "dataRefs": [{"kind": "ConfigMap", "name": "sysctl"}, {"kind": "Secret", "name": "token"}],
    "runGuarantee": "AtLeastOnce",
    "parallelism": "10%",
    "budgets": [{"nodes": "10%", "schedule": "0 9 * * 1-5", "duration": "8h"}],
    "backoffLimit": 3,
    "podFailurePolicy": {
        "rules": [
            {
                "action": "Ignore",
                "onExitCodes": {"operator": "In", "values": [1, 2], "containerName": "main"},
                "onPodConditions": [{"type": "DisruptionTarget"}],
            }
        ]
    },
    "failurePolicy": {"maxFailedNodes": "5%", "action": "Pause"},
    "results": [{"name": "diskUsed", "type": "Number", "unit": "%"}],
    "healthGate": {"conditions": [{"type": "KernelDeadlock", "status": "False"}]},
    "rolloutDeadlineSeconds": 3600,
    "canary": {"nodes": "10%", "soakSeconds": 60},
    "topologyKey": "topology.kubernetes.io/zone",
    "dependsOn": [{"name": "first"}],
    "exclusive": {"group": "kernel", "parallelism": "10%"},
}
# For planners: their nodes are selected, so that there is something to plan.
EVERY_NODE: Final = {
    "spec": {"nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [{"name": "main"}]}
}
PLANNED_TASK: Final = {
    **TASK,
    "template": EVERY_NODE,
    "results": [{"name": "diskUsed", "type": "Number", "unit": "%"}, {"name": "kernel", "type": "Text"}],
}
CONDITION: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "Succeeded",
    "message": "m",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
TASK_STATUS: Final = {
    "observedGeneration": 1,
    "currentRevision": "r",
    "formerRevision": {"template": "a", "revision": "b"},
    "conditions": [CONDITION],
    "desired": 1,
    "lastScheduleTime": "2026-01-01T00:00:00Z",
    "observedSchedule": {"schedule": "* * * * *", "timeZone": "UTC", "since": "2026-01-01T00:00:00Z"},
    "scheduleHistory": [
        {
            "scheduleTime": "2025-12-31T00:00:00Z",
            "desired": 1,
            "succeeded": 1,
            "failed": 0,
            "completionTime": None,
        }
    ],
    "failedNodes": [{"nodeName": "n", "reason": "r"}],
    "blockedNodes": [{"nodeName": "n", "reason": "r"}],
    "slots": {"width": 1, "held": 1, "holders": [{"nodeName": "n", "reason": "r"}]},
    "results": [
        {"name": "a", "type": "Text", "unit": "", "count": 1, "values": [{"value": "x", "nodes": 1}]}
    ],
    "ledger": {"shards": 1, "recorded": 1, "writes": [1], "done_run": "", "done_at": None},
    "rollout": {
        "rerunAt": "2026-01-01T00:00:00Z",
        "startTime": "2026-01-01T00:00:00Z",
        "events": [{"reason": "r", "time": "t"}],
    },
    "ecs": [{"cluster": "c"}],
}
ECS_TASK: Final[dict[str, Any]] = {
    "ecs": {
        "aws": {"region": "eu-west-1", "roleARN": "arn:aws:iam::1:role/a"},
        "service": "s",
        "clusters": ["a"],
        "events": {"sqsQueueURL": "https://sqs.eu-west-1.amazonaws.com/1/q"},
        "maxCount": 50,
    }
}
ECS_STATUS: Final[dict[str, Any]] = {
    "observedGeneration": 1,
    "currentRevision": "r",
    "conditions": [CONDITION],
    "desired": 1,
    "active": 1,
    "ecs": [
        {
            "cluster": "a",
            "desiredCount": 1,
            "runningCount": 1,
            "registeredContainerInstances": 1,
            "lastEventTime": "2027-01-15T07:59:00Z",
            "lastUpdateTime": "2027-01-15T07:59:00Z",
            "lastCalls": 3,
            "reason": "r",
            "message": "m",
        }
    ],
    "ecsOmitted": 1,
}
# What a plan reads of it. The last tick is that of fuzz.fleet.
PLANNED_STATUS: Final = {
    **{field: TASK_STATUS[field] for field in ("currentRevision", "conditions", "ledger", "rollout")},
    "lastScheduleTime": "2027-01-15T02:55:00Z",
    "observedSchedule": {
        "schedule": TASK["schedule"],
        "timeZone": TASK["timeZone"],
        "since": "2026-01-01T00:00:00Z",
    },
}
ENTRY: Final = {
    "nodeUID": "n",
    "revision": "r",
    "runKey": "k",
    "result": "Failed",
    "seq": 3,
    "attempts": 1,
    "finishedAt": 1767225600,
    "reason": "Error",
    "message": "m",
    "rebootRuns": [1767225600],
    "results": {"a": 1.5},
    "fault": {"name": "a", "code": "Missing", "found": "x"},
    "intent": "t",
    "before": {"nodeUID": "n", "revision": "r", "runKey": "k", "result": "Succeeded", "seq": 2},
}
STATE: Final = {
    "name": "main",
    "restartCount": 1,
    "containerID": "c",
    "state": {
        "terminated": {"exitCode": 1, "reason": "Error", "message": "m", "finishedAt": "2026-01-01T00:00:00Z"}
    },
    "lastState": {"terminated": {"exitCode": 1, "message": "m"}, "waiting": {"reason": "CrashLoopBackOff"}},
}
WIRE_CONDITION: Final = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "m",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
POD: Final = {
    "metadata": META,
    "spec": {"nodeName": "n", "restartPolicy": "OnFailure", "containers": [{"name": "main"}]},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "m",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [WIRE_CONDITION],
        "containerStatuses": [STATE],
        "initContainerStatuses": [STATE],
    },
}
NODE: Final = {
    "metadata": META,
    "spec": {
        "unschedulable": True,
        "taints": [{"key": "t", "effect": "NoSchedule", "value": "v"}],
        "providerID": "aws:///eu-west-1a/i-0123456789abcdef0",
    },
    "status": {
        "conditions": [{**WIRE_CONDITION, "type": "Ready", "status": "True"}],
        "nodeInfo": {"bootID": "0123"},
    },
}
FAILURE: Final = {
    "code": 422,
    "reason": "Invalid",
    "message": 'strict decoding error: unknown field "spec.x"',
    "details": {"causes": [{"field": "spec.a", "message": "m"}], "retryAfterSeconds": 3},
}
GRANTS: Final = {
    "identities": [
        {
            "namespaces": ["team-*"],
            "roleARNs": ["arn:aws:iam::*:role/a-*"],
            "queueARNs": ["arn:aws:sqs:*:*:a-*"],
            "endpointURLs": ["https://*.example.com/*"],
            "ownIdentity": True,
        }
    ]
}
POLICY: Final[dict[str, Any]] = {
    "mode": "Enforce",
    "priority": 100,
    "aws": {"region": "eu-west-1", "roleARN": "arn:aws:iam::1:role/a", "endpointURLs": {"ec2": "https://a"}},
    "selector": {
        "nodeSelector": {
            "matchLabels": {"kubernetes.io/os": "linux"},
            "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
        },
        "groups": [{"kind": "EKSManagedNodegroup", "names": ["apps-*", "a?b"]}],
        "exclude": {"matchLabels": {"a": "c"}, "matchExpressions": [{"key": "z", "operator": "Exists"}]},
    },
    "options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
    "safety": {
        "canary": {"instances": 1, "soak": "2m"},
        "allowLoosening": ["HopLimit"],
        "allowTightening": ["Tokens"],
    },
    "verification": {"interval": "24h"},
    "resyncInterval": "15m",
}
_ALL: Final = ["HopLimit", "Tokens", "Endpoint", "IPv6", "Tags"]
PLANNED_POLICY: Final[dict[str, Any]] = {
    **POLICY,
    "aws": {"region": "eu-west-1"},
    "selector": {
        "nodeSelector": {"matchLabels": {"kubernetes.io/os": "linux"}},
        "groups": [{"kind": "EKSManagedNodegroup", "names": ["apps-*"]}],
        "exclude": {"matchExpressions": [{"key": "z", "operator": "Exists"}]},
    },
    "options": {
        "httpPutResponseHopLimit": 2,
        "httpTokens": "required",
        "httpEndpoint": "enabled",
        "httpProtocolIpv6": "disabled",
        "instanceMetadataTags": "disabled",
    },
    "safety": {
        "canary": {"instances": 1, "soak": "2m", "onFailure": "Restore"},
        "allowLoosening": _ALL,
        "allowTightening": _ALL,
    },
    "verification": {"probe": True, "interval": "24h"},
}
# With all that a pass may do for each node.
LEAST_POLICY: Final = {
    "mode": "Enforce",
    "options": {"httpTokens": "required"},
    "verification": {"probe": True},
}
_CHANGE: Final = {"field": "httpTokens", "from": "optional", "to": "required"}
_CHANGED: Final = {
    "kind": "EKSManagedNodegroup",
    "name": "apps-1",
    "changes": [_CHANGE],
    "instances": [{"instance": "i-01234567891", "node": "n1", "at": "2027-01-15T07:59:00Z", "applied": True}],
}
_AT: Final = {"startedAt": "2027-01-15T07:50:00Z", "since": "2027-01-15T07:55:00Z"}
POLICY_STATUS: Final[dict[str, Any]] = {
    "exceptions": [
        {"node": "n1", "reason": "r", "instance": "i-01234567891", "since": "2027-01-15T07:55:00Z"}
    ],
    "canary": {
        "generation": 0,
        "instances": ["i-01234567891"],
        "phase": "Soaking",
        **_AT,
        "groups": [{**_CHANGED, **_AT, "phase": "Soaking"}],
        "passed": [
            {"kind": "EKSManagedNodegroup", "name": "apps-1", **_CHANGE, "at": "2027-01-15T07:00:00Z"}
        ],
    },
    "changed": [_CHANGED],
    "breaker": {"generation": 7, "failures": 1, "openedAt": "2027-01-15T07:00:00Z"},
}
MANIFEST: Final = "apiVersion: caretaker.dev/v1alpha1\nkind: DaemonTask\nmetadata: {name: a}\nspec: {}\n"
