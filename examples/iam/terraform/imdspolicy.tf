# What an IMDSPolicy names in spec.aws.roleARN. Leave imdspolicy_enforce out where none has `mode: Enforce`.

data "aws_iam_policy_document" "imdspolicy" {
  statement {
    sid       = "LookAtInstances"
    actions   = ["ec2:DescribeInstances"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  statement {
    sid = "LookAtWhatLaunchesThem"
    actions = [
      "autoscaling:DescribeAutoScalingGroups",
      "ec2:DescribeLaunchTemplateVersions",
      "ec2:DescribeTags",
      "ec2:GetInstanceMetadataDefaults",
    ]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  # Leave it out where no IMDSPolicy has spec.tokenGate.
  statement {
    sid       = "LookAtUseOfIMDSv1"
    actions   = ["cloudwatch:GetMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }
}

data "aws_iam_policy_document" "imdspolicy_enforce" {
  statement {
    sid       = "ChangeInstancesOfTheCluster"
    actions   = ["ec2:ModifyInstanceMetadataOptions"]
    resources = ["arn:aws:ec2:${var.region}:${var.account_id}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/kubernetes.io/cluster/${var.cluster_name}"
      values   = ["owned"]
    }
  }
}

resource "aws_iam_role" "imdspolicy" {
  name               = "metadata-options"
  assume_role_policy = data.aws_iam_policy_document.delegation.json
}

resource "aws_iam_role_policy" "imdspolicy" {
  name   = "imdspolicy"
  role   = aws_iam_role.imdspolicy.id
  policy = data.aws_iam_policy_document.imdspolicy.json
}

resource "aws_iam_role_policy" "imdspolicy_enforce" {
  name   = "imdspolicy-enforce"
  role   = aws_iam_role.imdspolicy.id
  policy = data.aws_iam_policy_document.imdspolicy_enforce.json
}
