variable "region" {
  description = "Region of the queues, the file gateways, the cluster's instances and the ECS clusters."
  type        = string
}

variable "account_id" {
  description = "Account of the roles, the queues and the instances."
  type        = string
}

variable "cluster_name" {
  description = "Name of the EKS cluster: its instances have the tag kubernetes.io/cluster/NAME = owned."
  type        = string
}

variable "external_id" {
  description = "What spec.aws.externalID, or spec.ecs.aws.externalID, has to say, for each cluster another: a role of the account is not had by whoever else may use the operator's identity."
  type        = string

  validation {
    condition     = length(var.external_id) >= 16
    error_message = "Take a value that nobody guesses, such as the cluster's name and a UUID."
  }
}

variable "identity" {
  description = "How the operator's pod gets its own identity: IRSA (the cluster's OIDC provider) or PodIdentity (the EKS Pod Identity agent)."
  type        = string
  default     = "PodIdentity"

  validation {
    condition     = contains(["IRSA", "PodIdentity"], var.identity)
    error_message = "identity is IRSA or PodIdentity."
  }
}

variable "oidc_provider" {
  description = "With IRSA: the cluster's OIDC provider without https://, oidc.eks.REGION.amazonaws.com/id/ID."
  type        = string
  default     = ""
}

variable "source_queue" {
  description = "Name of the queue of spec.source.sqs.queueURL."
  type        = string
}

variable "completion_queue" {
  description = "Name of the queue of spec.target.storageGateway.completion.queueURL."
  type        = string
}

variable "dead_letter_queue" {
  description = "Name of the source queue's dead-letter queue."
  type        = string
}

variable "kms_key_id" {
  description = "Id of the key that encrypts the queues. With SSE-SQS leave the statement DecryptQueues out."
  type        = string
}

variable "ecs_events_queue" {
  description = "Name of the queue of spec.ecs.events.sqsQueueURL."
  type        = string
}

variable "ecs_service" {
  description = "Name of the ECS service of spec.ecs.service."
  type        = string
}
