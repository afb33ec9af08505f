/* Connections and sessions: who gets in, who is thrown out, and that nobody else notices. */
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/random.h"
#include "manager/client_testing.h"

/* The bystander of a test: asks something and gets its answer. */
static void expect_working(struct client *client)
{
    struct hl_release release = {.lease = 12345};
    client_request(client, &release, HL_MESSAGE_RELEASE);
    client_expect_error(client, HL_E_NOT_FOUND, "");
}

static void a_welcome_brings_epoch_token_and_five_descriptors(void)
{
    static struct stand stand;
    struct client one, two;
    stand_open(&stand, NULL);
    client_open(&one, HL_PEER_ENGINE);
    client_open(&two, HL_PEER_ENGINE);
    CU_ASSERT_EQUAL(one.welcome.epoch, stand_stats(&stand).epoch);
    CU_ASSERT_NOT_EQUAL(one.welcome.epoch, 0);
    CU_ASSERT_NOT_EQUAL(one.welcome.session, two.welcome.session);
    CU_ASSERT_EQUAL(one.welcome.lease_ttl_ms, HL_LEASE_TTL_MS);
    CU_ASSERT_NOT_EQUAL(memcmp(one.welcome.token, two.welcome.token, sizeof one.welcome.token), 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 2);
    stand_check(&stand);
    client_bye(&one);
    client_bye(&two);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 0);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
}

static void each_start_has_its_own_epoch_and_arena_ids(void)
{
    static struct stand first, second;
    stand_open(&first, NULL);
    uint64_t epoch = first.manager->epoch, arena = hl_arena_id(first.manager->arenas[0]);
    CU_ASSERT_NOT_EQUAL(arena, hl_arena_id(first.manager->arenas[1]));
    stand_close(&first);
    stand_open(&second, NULL);
    CU_ASSERT_NOT_EQUAL(second.manager->epoch, epoch);
    CU_ASSERT_NOT_EQUAL(hl_arena_id(second.manager->arenas[0]), arena);
    CU_ASSERT_NOT_EQUAL(hl_arena_id(second.manager->arenas[0]), 0);
    stand_close(&second);
}

/* --- versions --- */

static void refuse_hello(struct stand *stand, const struct hl_hello *hello, hl_status status, unsigned own,
                         unsigned other)
{
    struct client client;
    char numbers[2][16];
    snprintf(numbers[0], sizeof numbers[0], "%u", own);
    snprintf(numbers[1], sizeof numbers[1], "%u", other);
    client_connect(&client);
    client_send(&client, hello, sizeof *hello, NULL, 0);
    client_expect_error(&client, status, numbers[0]);
    CU_ASSERT_PTR_NOT_NULL(strstr(client.err.text, numbers[1]));
    client_expect_closed(&client);
    CU_ASSERT_TRUE(stand_logged(stand, numbers[1]));
    client_close(&client);
}

static void a_version_that_differs_is_refused_with_both_numbers(void)
{
    static struct stand stand;
    struct hl_hello hello;
    struct client bystander;
    stand_open(&stand, NULL);
    client_open(&bystander, HL_PEER_ENGINE);
    const struct {
        uint32_t *field;
        uint32_t own;
    } fields[] = {
        {&hello.bootstrap_version, HL_BOOTSTRAP_VERSION}, {&hello.channel_abi, HL_CHANNEL_ABI},
        {&hello.lifecycle, HL_LIFECYCLE_VERSION},         {&hello.plan_version, HL_PLAN_VERSION},
        {&hello.cache_schema, HL_CACHE_SCHEMA},           {&hello.grant_schema, HL_GRANT_SCHEMA},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        hl_hello_fill(&hello, HL_PEER_ENGINE, "old");
        CU_ASSERT_EQUAL(*fields[i].field, fields[i].own);
        *fields[i].field = 9000 + (uint32_t)i;
        refuse_hello(&stand, &hello, HL_E_VERSION, fields[i].own, 9000 + (uint32_t)i);
    }
    expect_working(&bystander);
    client_bye(&bystander);
    stand_close(&stand);
}

static void another_layout_signature_is_refused_with_both_values(void)
{
    static struct stand stand;
    struct hl_hello hello;
    struct client client;
    char value[24];
    stand_open(&stand, NULL);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "other layout");
    hello.layout_signature ^= 1;
    client_connect(&client);
    client_send(&client, &hello, sizeof hello, NULL, 0);
    snprintf(value, sizeof value, "%llx", (unsigned long long)hello.layout_signature);
    client_expect_error(&client, HL_E_VERSION, value);
    snprintf(value, sizeof value, "%llx", (unsigned long long)hello.layout_signature ^ 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(client.err.text, value));
    client_expect_closed(&client);
    client_close(&client);
    stand_close(&stand);
}

/* --- limits --- */

static void raise_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void the_65th_session_is_refused_and_a_tool_is_not(void)
{
    static struct stand stand;
    static struct client clients[HL_SESSIONS];
    struct client more, tool;
    struct hl_hello hello;
    raise_descriptors();
    stand_open(&stand, NULL);
    for (unsigned i = 0; i < HL_SESSIONS; i++)
        client_open(&clients[i], HL_PEER_ENGINE);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, HL_SESSIONS);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "one too many");
    client_connect(&more);
    client_send(&more, &hello, sizeof hello, NULL, 0);
    client_expect_error(&more, HL_E_BUDGET, "64");
    client_expect_closed(&more);
    client_close(&more);
    client_open(&tool, HL_PEER_TOOL);
    client_bye(&tool);
    client_bye(&clients[17]);
    client_open(&clients[17], HL_PEER_ENGINE);
    CU_ASSERT_EQUAL(clients[17].welcome.session, 17);
    expect_working(&clients[16]);
    stand_check(&stand);
    for (unsigned i = 0; i < HL_SESSIONS; i++)
        client_close(&clients[i]);
    stand_close(&stand);
}

static void tools_have_a_limit_of_their_own(void)
{
    static struct stand stand;
    struct client tools[MANAGER_TOOL_SESSIONS], more, engine;
    struct hl_hello hello;
    stand_open(&stand, NULL);
    for (unsigned i = 0; i < MANAGER_TOOL_SESSIONS; i++)
        client_open(&tools[i], HL_PEER_TOOL);
    hl_hello_fill(&hello, HL_PEER_TOOL, "one too many");
    client_connect(&more);
    client_send(&more, &hello, sizeof hello, NULL, 0);
    client_expect_error(&more, HL_E_BUDGET, "tools");
    client_close(&more);
    client_open(&engine, HL_PEER_ENGINE);
    client_bye(&engine);
    for (unsigned i = 0; i < MANAGER_TOOL_SESSIONS; i++)
        client_bye(&tools[i]);
    stand_close(&stand);
}

static void connections_that_say_nothing_take_no_session(void)
{
    static struct stand stand;
    struct client silent[MANAGER_GREETINGS], waiting;
    struct hl_hello hello;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    for (unsigned i = 0; i < MANAGER_GREETINGS; i++)
        client_connect(&silent[i]);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 0);
    /* It waits in the listener's queue until one of them leaves. */
    client_connect(&waiting);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "waiting");
    client_send(&waiting, &hello, sizeof hello, NULL, 0);
    client_close(&silent[3]);
    client_expect(&waiting, HL_MESSAGE_WELCOME, &packet);
    hl_packet_close_fds(&packet);
    client_close(&waiting);
    for (unsigned i = 0; i < MANAGER_GREETINGS; i++)
        client_close(&silent[i]);
    stand_close(&stand);
}

/* --- another user --- */

enum { FOREIGN_USER = 65534, FOREIGN_IMPOSSIBLE = 42 };

/* Connects as another user to a socket that (made so by the test) everybody can reach. */
static void role_foreigner(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    char byte;
    if (!client_is_role())
        return;
    if (chdir("m") != 0 || setresuid(FOREIGN_USER, FOREIGN_USER, FOREIGN_USER) != 0)
        _exit(FOREIGN_IMPOSSIBLE);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CU_ASSERT_EQUAL_FATAL(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    CU_ASSERT_TRUE(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static void another_user_is_refused_and_logged(void)
{
    static struct stand stand;
    stand_open(&stand, NULL);
    CU_ASSERT_EQUAL(chmod("m", 0755) | chmod("m/s", 0666), 0);
    int status = client_wait(client_spawn("role_foreigner"));
    if (status == FOREIGN_IMPOSSIBLE) { /* not root, or a user namespace without that user */
        CU_PASS("cannot become another user here");
    } else {
        CU_ASSERT_EQUAL(status, 0);
        stand_sync(&stand);
        CU_ASSERT_TRUE(stand_logged(&stand, "refused a connection of user 65534"));
        CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 0);
    }
    stand_close(&stand);
}

/* --- broken peers --- */

static void expect_dropped(struct client *offender, struct client *bystander)
{
    client_expect_closed(offender);
    client_close(offender);
    expect_working(bystander);
}

static void a_first_message_that_is_no_hello_is_refused(void)
{
    static struct stand stand;
    struct client offender, bystander;
    struct hl_hello hello;
    struct hl_message bye;
    hl_random random;
    unsigned char noise[HL_MESSAGE_BYTES];
    const int fd = 0;
    stand_open(&stand, NULL);
    client_open(&bystander, HL_PEER_ENGINE);
    hl_random_seed(&random, 7);
    for (unsigned i = 0; i < 64; i++) {
        size_t size = 1 + hl_random_below(&random, sizeof noise);
        hl_random_fill(&random, noise, size);
        client_connect(&offender);
        client_send(&offender, noise, size, NULL, 0);
        expect_dropped(&offender, &bystander);
    }
    hl_hello_fill(&hello, HL_PEER_ENGINE, "cut");
    for (size_t size = 1; size < sizeof hello; size += 7) {
        client_connect(&offender);
        client_send(&offender, &hello, size, NULL, 0);
        expect_dropped(&offender, &bystander);
    }
    client_connect(&offender);
    client_send(&offender, &hello, sizeof hello, &fd, 1);
    expect_dropped(&offender, &bystander);
    client_connect(&offender);
    client_request(&offender, &bye, HL_MESSAGE_BYE);
    client_expect_error(&offender, HL_E_PROTOCOL, "BYE");
    expect_dropped(&offender, &bystander);
    CU_ASSERT_TRUE(stand_logged(&stand, "refused process"));
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 1);
    client_bye(&bystander);
    stand_close(&stand);
}

static void a_session_that_breaks_the_protocol_is_dropped_alone(void)
{
    static struct stand stand;
    struct client offender, bystander;
    hl_random random;
    unsigned char noise[HL_MESSAGE_BYTES + 512];
    struct hl_release release;
    const int fds[2] = {0, 0};
    stand_open(&stand, NULL);
    client_open(&bystander, HL_PEER_ENGINE);
    hl_random_seed(&random, 8);
    for (unsigned i = 0; i < 64; i++) {
        size_t size = 1 + hl_random_below(&random, sizeof noise);
        hl_random_fill(&random, noise, size);
        client_open(&offender, HL_PEER_ENGINE);
        client_send(&offender, noise, size, NULL, 0);
        expect_dropped(&offender, &bystander);
    }
    hl_message_head(&release, HL_MESSAGE_RELEASE, 1);
    release.lease = 1;
    for (size_t size = 1; size < sizeof release; size += 5) { /* cut */
        client_open(&offender, HL_PEER_ENGINE);
        client_send(&offender, &release, size, NULL, 0);
        expect_dropped(&offender, &bystander);
    }
    client_open(&offender, HL_PEER_ENGINE);
    client_send(&offender, &release, sizeof release, fds, 2); /* descriptors that nobody asked for */
    expect_dropped(&offender, &bystander);
    CU_ASSERT_TRUE(stand_logged(&stand, "has no channel any more"));
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 1);
    stand_check(&stand);
    client_bye(&bystander);
    stand_close(&stand);
}

static void a_message_of_the_manager_sent_back_is_no_request(void)
{
    static struct stand stand;
    struct client victim, offender;
    stand_open(&stand, NULL);
    client_open(&victim, HL_PEER_ENGINE);
    /* Another session's welcome, token and all, does not make one that session. */
    client_open(&offender, HL_PEER_ENGINE);
    struct hl_welcome replayed = victim.welcome;
    client_request(&offender, &replayed, HL_MESSAGE_WELCOME);
    client_expect_error(&offender, HL_E_PROTOCOL, "WELCOME is no request");
    expect_dropped(&offender, &victim);
    /* Nor does a second HELLO make a second session. */
    struct hl_hello hello;
    client_open(&offender, HL_PEER_ENGINE);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "again");
    client_request(&offender, &hello, HL_MESSAGE_HELLO);
    client_expect_error(&offender, HL_E_PROTOCOL, "HELLO is no request");
    expect_dropped(&offender, &victim);
    CU_ASSERT_TRUE(stand_logged(&stand, "WELCOME is no request"));
    client_bye(&victim);
    stand_close(&stand);
}

static void a_peer_that_does_not_read_its_replies_is_hung_up_on(void)
{
    static struct stand stand;
    struct client offender, bystander;
    struct hl_release release = {.lease = 1};
    stand_open(&stand, NULL);
    client_open(&bystander, HL_PEER_ENGINE);
    client_open(&offender, HL_PEER_ENGINE);
    hl_message_head(&release, HL_MESSAGE_RELEASE, 1);
    unsigned sent = 0;
    while (sent < 1000000 && send(offender.fd, &release, sizeof release, MSG_NOSIGNAL) > 0)
        sent++;
    CU_ASSERT_TRUE(sent < 1000000);
    expect_dropped(&offender, &bystander);
    stand_sync(&stand); /* the channel is shut down first, and given up in a round of its own */
    CU_ASSERT_TRUE(stand_logged(&stand, "does not read its replies"));
    client_bye(&bystander);
    stand_close(&stand);
}

static void a_tool_may_only_ask_what_tools_ask(void)
{
    static struct stand stand;
    struct client tool;
    struct hl_release release = {.lease = 1};
    stand_open(&stand, NULL);
    client_open(&tool, HL_PEER_TOOL);
    client_request(&tool, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&tool, HL_E_PROTOCOL, "RELEASE");
    client_expect_closed(&tool);
    client_close(&tool);
    stand_close(&stand);
}

static void stopping_ends_living_sessions(void)
{
    static struct stand stand;
    struct client engine, silent;
    stand_open(&stand, NULL);
    client_open(&engine, HL_PEER_ENGINE);
    client_connect(&silent);
    CU_ASSERT_EQUAL(hl_manager_stop(NULL), 0);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    client_expect_closed(&engine);
    client_expect_closed(&silent);
    client_close(&engine);
    client_close(&silent);
}

HL_TESTS(manager_session, HL_CASE(a_welcome_brings_epoch_token_and_five_descriptors),
         HL_CASE(each_start_has_its_own_epoch_and_arena_ids),
         HL_CASE(a_version_that_differs_is_refused_with_both_numbers),
         HL_CASE(another_layout_signature_is_refused_with_both_values),
         HL_CASE(the_65th_session_is_refused_and_a_tool_is_not), HL_CASE(tools_have_a_limit_of_their_own),
         HL_CASE(connections_that_say_nothing_take_no_session), HL_CASE(another_user_is_refused_and_logged),
         HL_CASE(a_first_message_that_is_no_hello_is_refused),
         HL_CASE(a_session_that_breaks_the_protocol_is_dropped_alone),
         HL_CASE(a_message_of_the_manager_sent_back_is_no_request),
         HL_CASE(a_peer_that_does_not_read_its_replies_is_hung_up_on),
         HL_CASE(a_tool_may_only_ask_what_tools_ask), HL_CASE(stopping_ends_living_sessions),
         HL_CASE(role_foreigner));
