/* One round of the dispatcher, in which a session ends before an event of it has been handled. */
#include <sys/eventfd.h>

#include "manager/dispatch.h"
#include "manager/manager_testing.h"

/* I4: the place of a session may be another's, or nobody's, when its last event has its turn. */
static void an_event_of_a_session_that_has_ended_is_nobodys(void)
{
    struct world world;
    const struct world_options options = {0};
    world_open(&world, &options);
    hl_manager *manager = world.manager;
    struct manager_session *session = world_session(&world, 0);
    /* Both are ready, in this order: its peer has closed the channel, and has signalled before. */
    HL_REQUIRE_OK(manager_dispatch_watch(manager, session->socket, MANAGER_WATCH_SOCKET, 0, session->serial,
                                         &world.err),
                  world.err);
    CU_ASSERT_EQUAL_FATAL(eventfd_write(session->retirement_fd, 1), 0);
    HL_REQUIRE_OK(manager_dispatch_watch(manager, session->retirement_fd, MANAGER_WATCH_RETIREMENT, 0,
                                         session->serial, &world.err),
                  world.err);
    manager->stopping = true;
    CU_ASSERT_PTR_NULL(manager_dispatch_run(manager));
    CU_ASSERT_EQUAL(world_session(&world, 0)->state, MANAGER_SESSION_EMPTY);
    CU_ASSERT_EQUAL(world_session(&world, 1)->state, MANAGER_SESSION_EMPTY);
    world_close(&world);
}

HL_TESTS(dispatch, HL_CASE(an_event_of_a_session_that_has_ended_is_nobodys));
