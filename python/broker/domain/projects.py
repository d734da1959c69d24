"""Projects: they group programs, users, application revisions and stored values."""

from typing import Annotated

from pydantic import AfterValidator, Field

from broker.domain.values import STORABLE, FreeObject, Id, Model, Name, Time, check_storable

MAX_DESCRIPTION_CHARACTERS = 10_000

Description = Annotated[
    str, Field(max_length=MAX_DESCRIPTION_CHARACTERS), AfterValidator(check_storable), STORABLE
]


class Project(Model):
    """A project as it is stored and answered. Its members are the users whose `projectIds` name it."""

    id: Id
    name: Name
    description: Description | None = None
    metadata: FreeObject
    created_time: Time
    updated_time: Time
