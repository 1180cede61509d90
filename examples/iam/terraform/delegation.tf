# Who may assume the roles that do the work: the operator, and only with the external ID. Without it, whoever
# gets a resource of another cluster past the same operator's identity could name these roles.

data "aws_iam_policy_document" "delegation" {
  statement {
    sid     = "OperatorWithTheExternalID"
    actions = ["sts:AssumeRole"]

    principals {
      type        = "AWS"
      identifiers = [aws_iam_role.operator.arn]
    }

    condition {
      test     = "StringEquals"
      variable = "sts:ExternalId"
      values   = [var.external_id]
    }
  }

  # The tags of EKS Pod Identity; with IRSA leave this statement out.
  statement {
    sid     = "TagsOfTheOperatorsSession"
    actions = ["sts:TagSession"]

    principals {
      type        = "AWS"
      identifiers = [aws_iam_role.operator.arn]
    }
  }
}
