# What an S3AggregatedRefresh of file shares names in spec.aws.roleARN. With target.job and target.http the last
# four statements are not needed.

data "aws_iam_policy_document" "s3aggregatedrefresh" {
  statement {
    sid     = "ReadQueues"
    actions = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"]
    resources = [
      "arn:aws:sqs:${var.region}:${var.account_id}:${var.source_queue}",
      "arn:aws:sqs:${var.region}:${var.account_id}:${var.completion_queue}",
    ]
  }

  statement {
    sid       = "LookAtSourceQueue"
    actions   = ["sqs:GetQueueAttributes"]
    resources = ["arn:aws:sqs:${var.region}:${var.account_id}:${var.source_queue}"]
  }

  statement {
    sid       = "CountDeadLetters"
    actions   = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"]
    resources = ["arn:aws:sqs:${var.region}:${var.account_id}:${var.dead_letter_queue}"]
  }

  statement {
    sid       = "DecryptQueues"
    actions   = ["kms:Decrypt"]
    resources = ["arn:aws:kms:${var.region}:${var.account_id}:key/${var.kms_key_id}"]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["sqs.${var.region}.amazonaws.com"]
    }
  }

  statement {
    sid       = "FindFileShares"
    actions   = ["storagegateway:ListFileShares"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  statement {
    sid = "RefreshFileShares"
    actions = [
      "storagegateway:DescribeNFSFileShares",
      "storagegateway:DescribeSMBFileShares",
      "storagegateway:RefreshCache",
    ]
    resources = ["arn:aws:storagegateway:${var.region}:${var.account_id}:share/*"]
  }

  # Only for file shares that reach their bucket through an access point.
  statement {
    sid       = "ResolveAccessPoints"
    actions   = ["s3:GetAccessPoint"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }

    condition {
      test     = "StringEquals"
      variable = "s3:DataAccessPointAccount"
      values   = [var.account_id]
    }
  }

  # Only for spec.cost.
  statement {
    sid       = "CountObjects"
    actions   = ["cloudwatch:GetMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }
}

resource "aws_iam_role" "s3aggregatedrefresh" {
  name               = "media-refresh"
  assume_role_policy = data.aws_iam_policy_document.delegation.json
}

resource "aws_iam_role_policy" "s3aggregatedrefresh" {
  name   = "s3aggregatedrefresh"
  role   = aws_iam_role.s3aggregatedrefresh.id
  policy = data.aws_iam_policy_document.s3aggregatedrefresh.json
}
