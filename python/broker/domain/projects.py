"""Projects: they group programs, users, application revisions and stored values."""

from typing import Annotated

from pydantic import AfterValidator, Field

from broker.domain.values import STORABLE, FreeObject, Id, Model, Name, Time, check_storable
from broker.errors import Conflict

MAX_DESCRIPTION_CHARACTERS = 10_000

DescriptionText = Annotated[
    str, Field(max_length=MAX_DESCRIPTION_CHARACTERS), AfterValidator(check_storable), STORABLE
]


class Project(Model):
    """A project as it is stored and answered. Its members are the users whose `projectIds` name it."""

    id: Id
    name: Name
    description: DescriptionText | None = None
    metadata: FreeObject
    created_time: Time
    updated_time: Time


def going_project(project_id: str) -> Conflict:
    """The error for what comes into a project while that is deleted."""
    return Conflict(f"the project {project_id} is being deleted, or has been meanwhile")
