output "operator_role_arn" {
  description = "With IRSA: the annotation eks.amazonaws.com/role-arn of the operator's service account."
  value       = aws_iam_role.operator.arn
}

output "s3aggregatedrefresh_role_arn" {
  description = "spec.aws.roleARN of S3AggregatedRefreshes, and an entry of --aws-identities."
  value       = aws_iam_role.s3aggregatedrefresh.arn
}

output "imdspolicy_role_arn" {
  description = "spec.aws.roleARN of IMDSPolicies, and an entry of --aws-identities."
  value       = aws_iam_role.imdspolicy.arn
}

output "daemontask_ecs_role_arn" {
  description = "spec.ecs.aws.roleARN of DaemonTasks, and an entry of --aws-identities."
  value       = aws_iam_role.daemontask_ecs.arn
}
