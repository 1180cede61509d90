# What a DaemonTask with an ECS target names in spec.ecs.aws.roleARN. With a list of spec.ecs.clusters the second
# statement is not needed.

data "aws_iam_policy_document" "daemontask_ecs" {
  statement {
    sid       = "ReadEvents"
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage"]
    resources = ["arn:aws:sqs:${var.region}:${var.account_id}:${var.ecs_events_queue}"]
  }

  statement {
    sid       = "FindClusters"
    actions   = ["ecs:ListClusters"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  statement {
    sid       = "CountContainerInstances"
    actions   = ["ecs:DescribeClusters", "ecs:ListContainerInstances"]
    resources = ["arn:aws:ecs:${var.region}:${var.account_id}:cluster/*"]
  }

  statement {
    sid       = "ReadPlacementConstraints"
    actions   = ["ecs:DescribeTaskDefinition"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  statement {
    sid       = "ReadCapacityProviders"
    actions   = ["ecs:DescribeCapacityProviders"]
    resources = ["arn:aws:ecs:${var.region}:${var.account_id}:capacity-provider/*"]
  }

  statement {
    sid       = "ReadTheirContainerInstances"
    actions   = ["ecs:DescribeContainerInstances"]
    resources = ["arn:aws:ecs:${var.region}:${var.account_id}:container-instance/*/*"]
  }

  statement {
    sid       = "KeepTheService"
    actions   = ["ecs:DescribeServices", "ecs:UpdateService"]
    resources = ["arn:aws:ecs:${var.region}:${var.account_id}:service/*/${var.ecs_service}"]
  }
}

resource "aws_iam_role" "daemontask_ecs" {
  name               = "ecs-agents"
  assume_role_policy = data.aws_iam_policy_document.delegation.json
}

resource "aws_iam_role_policy" "daemontask_ecs" {
  name   = "daemontask-ecs"
  role   = aws_iam_role.daemontask_ecs.id
  policy = data.aws_iam_policy_document.daemontask_ecs.json
}
