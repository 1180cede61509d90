# The operator's own identity. It may do one thing: assume the three roles below, which do the work.

locals {
  service_account = "system:serviceaccount:caretaker-system:caretaker"
}

data "aws_iam_policy_document" "pod_identity" {
  statement {
    sid     = "PodIdentityOfTheOperator"
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [var.account_id]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = ["arn:aws:eks:${var.region}:${var.account_id}:cluster/${var.cluster_name}"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes-namespace"
      values   = ["caretaker-system"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes-service-account"
      values   = ["caretaker"]
    }
  }
}

data "aws_iam_policy_document" "irsa" {
  statement {
    sid     = "ServiceAccountOfTheOperator"
    actions = ["sts:AssumeRoleWithWebIdentity"]

    principals {
      type        = "Federated"
      identifiers = ["arn:aws:iam::${var.account_id}:oidc-provider/${var.oidc_provider}"]
    }

    condition {
      test     = "StringEquals"
      variable = "${var.oidc_provider}:sub"
      values   = [local.service_account]
    }

    condition {
      test     = "StringEquals"
      variable = "${var.oidc_provider}:aud"
      values   = ["sts.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "assume_roles" {
  statement {
    sid = "OperatorAssumesRoles"
    # EKS Pod Identity gives its sessions tags that go along to the next role; with IRSA leave sts:TagSession out.
    actions = ["sts:AssumeRole", "sts:TagSession"]
    resources = [
      "arn:aws:iam::${var.account_id}:role/ecs-agents",
      "arn:aws:iam::${var.account_id}:role/media-refresh",
      "arn:aws:iam::${var.account_id}:role/metadata-options",
    ]
  }
}

resource "aws_iam_role" "operator" {
  name               = "caretaker"
  assume_role_policy = var.identity == "IRSA" ? data.aws_iam_policy_document.irsa.json : data.aws_iam_policy_document.pod_identity.json
}

resource "aws_iam_role_policy" "assume_roles" {
  name   = "assume-roles"
  role   = aws_iam_role.operator.id
  policy = data.aws_iam_policy_document.assume_roles.json
}

resource "aws_eks_pod_identity_association" "operator" {
  count           = var.identity == "PodIdentity" ? 1 : 0
  cluster_name    = var.cluster_name
  namespace       = "caretaker-system"
  service_account = "caretaker"
  role_arn        = aws_iam_role.operator.arn
}
