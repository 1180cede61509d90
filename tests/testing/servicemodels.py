"""botocore's descriptions of AWS's services, each read once: that of EC2 takes a tenth of a second."""

from functools import cache

from botocore.loaders import create_loader
from botocore.model import ServiceModel


@cache
def service_model(service: str) -> ServiceModel:
    return ServiceModel(create_loader().load_service_model(service, "service-2"))
