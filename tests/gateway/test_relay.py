"""Viewers of a gateway that follows a relay get what those of others get: tests of other modules again."""

import pytest

from tests.gateway import test_channels, test_responses, test_storage_channel, test_subscribe
from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

IS_RELAYED = True


async def test_its_gateway_follows_a_relay(world: World) -> None:
    await (await world.join()).call("subscribe", programId=await world.program())
    assert world.relay is not None
    assert world.relay.sessions == 1
    assert len(world.product.owners.owner._sessions) == 1


test_pushes = test_subscribe.test_subscriber_gets_what_is_published
test_since = test_subscribe.test_since_brings_what_was_missed
test_since_before_the_log = test_subscribe.test_since_reaches_before_what_the_gateway_has
test_since_another_message = test_subscribe.test_cursor_with_another_message_at_its_seq_is_not_recovered
test_since_lost = test_subscribe.test_position_that_is_lost_is_said_so
test_history = test_subscribe.test_history_brings_the_last_pushes
test_changes = test_subscribe.test_changes_and_deletions_are_pushed_and_recovered
test_epochs = test_subscribe.test_new_epochs_are_told
test_deleted = test_subscribe.test_deleted_program_ends_its_subscriptions
test_private = test_subscribe.test_program_made_private_ends_anonymous_subscriptions
test_moved = test_subscribe.test_private_program_that_moves_ends_those_of_the_former_project
test_owner_away = test_subscribe.test_owner_that_was_away_leaves_no_gap
test_batch = test_subscribe.test_batch_of_subscribes
test_programs_channel = test_channels.test_programs_channel_tells_of_programs
test_project_channel = test_channels.test_project_channel_has_the_events_of_its_programs
test_program_joins = test_channels.test_program_created_later_joins_the_channel_from_its_first_event
test_storage = test_storage_channel.test_every_storing_is_told_once_and_in_order
test_responses_channel = test_responses.test_changed_results_are_told
test_responses_private = test_responses.test_a_program_that_becomes_private_ends_the_anonymous
test_responses_deleted = test_responses.test_a_deleted_program_ends_its_channel
