"""Samples of responses of AWS, with all members that are read."""

from typing import Any, Final

INSTANCES: Final[dict[str, Any]] = {
    "Reservations": [
        {
            "OwnerId": "123456789012",
            "Instances": [
                {
                    "InstanceId": "i-0123456789abcdef0",
                    "State": {"Name": "running"},
                    "MetadataOptions": {
                        "State": "applied",
                        "HttpTokens": "required",
                        "HttpPutResponseHopLimit": 1,
                        "HttpEndpoint": "enabled",
                        "HttpProtocolIpv6": "disabled",
                        "InstanceMetadataTags": "disabled",
                    },
                    "Tags": [{"Key": "kubernetes.io/cluster/prod", "Value": "owned"}],
                    "Operator": {"Managed": False},
                }
            ],
        }
    ],
    "NextToken": "t",
}
GROUPS: Final[dict[str, Any]] = {
    "AutoScalingGroups": [
        {
            "AutoScalingGroupName": "apps",
            "MixedInstancesPolicy": {
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "3"},
                    "Overrides": [{"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-2"}}],
                },
                "InstancesDistribution": {"OnDemandBaseCapacity": 1},
            },
            "Tags": [{"Key": "k", "Value": "v"}],
        }
    ],
    "NextToken": "t",
}
VERSIONS: Final[dict[str, Any]] = {
    "LaunchTemplateVersions": [
        {
            "LaunchTemplateId": "lt-1",
            "LaunchTemplateName": "apps",
            "VersionNumber": 3,
            "DefaultVersion": True,
            "LaunchTemplateData": {"ImageId": "ami-1", "MetadataOptions": {"HttpTokens": "optional"}},
        }
    ],
    "NextToken": "t",
}
ACCOUNT: Final[dict[str, Any]] = {
    "AccountLevel": {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "HttpTokensEnforced": "enabled",
        "ManagedBy": "declarative-policy",
        "ManagedExceptionMessage": "ask the platform team",
    }
}
_ARN: Final = "arn:aws:ecs:eu-west-1:123456789012:container-instance/prod/0123"
LOOK: Final[dict[str, Any]] = {
    "describe_services": {
        "services": [
            {
                "status": "ACTIVE",
                "schedulingStrategy": "REPLICA",
                "desiredCount": 2,
                "runningCount": 2,
                "taskDefinition": "arn:aws:ecs:eu-west-1:123456789012:task-definition/agent:7",
                "placementConstraints": [
                    {"type": "memberOf", "expression": "attribute:a == b or attribute:c exists"},
                    {"type": "distinctInstance"},
                ],
                "deploymentConfiguration": {"minimumHealthyPercent": 50},
                "deployments": [{"launchType": "", "capacityProviderStrategy": []}],
            }
        ],
        "failures": [{"arn": "a", "reason": "MISSING"}],
    },
    "describe_clusters": {
        "clusters": [
            {
                "status": "ACTIVE",
                "registeredContainerInstancesCount": 3,
                "defaultCapacityProviderStrategy": [{"capacityProvider": "cp", "weight": 1, "base": 0}],
            }
        ]
    },
    "describe_capacity_providers": {
        "capacityProviders": [
            {"name": "cp", "autoScalingGroupProvider": {"managedScaling": {"status": "DISABLED"}}}
        ]
    },
    "describe_task_definition": {
        "taskDefinition": {"placementConstraints": [{"type": "memberOf", "expression": "attribute:d == e"}]}
    },
    "list_container_instances": {"containerInstanceArns": [_ARN], "nextToken": "t"},
    "describe_container_instances": {
        "containerInstances": [{"containerInstanceArn": _ARN, "capacityProviderName": "cp"}],
        "failures": [{"arn": "a", "reason": "MISSING"}],
    },
    "update_service": {"service": {"desiredCount": 1}},
}
QUEUE: Final = {
    "Attributes": {
        "QueueArn": "arn:aws:sqs:eu-west-1:123456789012:a",
        "ApproximateNumberOfMessages": "3",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "MaximumMessageSize": "262144",
        "MessageRetentionPeriod": "345600",
        "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:b","maxReceiveCount":5}',
    }
}
