/* What tools see and decide: JSON answers, and quarantine from its beginning to an operator's release. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "manager/client_testing.h"

static json_t *read_answer(const struct hl_packet *packet)
{
    struct stat file;
    char *text;
    CU_ASSERT_EQUAL_FATAL(packet->fd_count, 1);
    CU_ASSERT_EQUAL_FATAL(fstat(packet->fds[0], &file), 0);
    text = malloc((size_t)file.st_size);
    CU_ASSERT_EQUAL_FATAL(pread(packet->fds[0], text, (size_t)file.st_size, 0), file.st_size);
    json_t *answer = json_loadb(text, (size_t)file.st_size, 0, NULL);
    free(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(answer);
    return answer;
}

static json_t *ask(struct client *client, enum hl_admin_verb verb)
{
    struct hl_admin request = {.verb = verb};
    struct hl_packet packet;
    client_request(client, &request, HL_MESSAGE_ADMIN);
    client_expect(client, HL_MESSAGE_DONE, &packet);
    json_t *answer = read_answer(&packet);
    hl_packet_close_fds(&packet);
    return answer;
}

static long long number(const json_t *object, const char *key)
{
    CU_ASSERT_TRUE(json_is_integer(json_object_get(object, key)));
    return (long long)json_integer_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    CU_ASSERT_PTR_NOT_NULL_FATAL(value);
    return value;
}

static void status_sessions_and_arenas_say_what_is_there(void)
{
    static struct stand stand;
    struct client tool, engine;
    stand_open(&stand, NULL);
    client_open(&engine, HL_PEER_ENGINE);
    uint32_t binding = client_register(&engine, "engine", 4);
    stand_put_blocks(&stand, &engine, binding, 3);
    struct hl_lease_message lease = client_query(&engine, binding, 0, 3);
    client_open(&tool, HL_PEER_TOOL);

    json_t *status = ask(&tool, HL_ADMIN_STATUS);
    CU_ASSERT_EQUAL(strtoull(text(status, "epoch"), NULL, 16), stand.manager->epoch);
    CU_ASSERT_EQUAL(number(status, "pid"), getpid());
    CU_ASSERT_EQUAL(number(status, "sessions"), 1);
    CU_ASSERT_EQUAL(number(status, "bindings"), 1);
    CU_ASSERT_EQUAL(number(status, "leases"), 1);
    CU_ASSERT_EQUAL(number(status, "blocks"), 3);
    CU_ASSERT_EQUAL((uint64_t)number(status, "reserved_bytes"), lease.bytes);
    CU_ASSERT_EQUAL((uint64_t)number(status, "arena_bytes"), 2 * STAND_ARENA_BYTES);
    const json_t *gpu = json_array_get(json_object_get(status, "gpus"), 0);
    CU_ASSERT_STRING_EQUAL(text(gpu, "kind"), "software");
    CU_ASSERT_EQUAL(number(gpu, "restores"), 0);
    json_decref(status);

    json_t *sessions = ask(&engine, HL_ADMIN_SESSIONS); /* an engine may ask too */
    const json_t *list = json_object_get(sessions, "sessions");
    CU_ASSERT_EQUAL(json_array_size(list), 2);
    const json_t *first = json_array_get(list, 0);
    CU_ASSERT_STRING_EQUAL(text(first, "state"), "live");
    CU_ASSERT_STRING_EQUAL(text(first, "name"), "test");
    CU_ASSERT_EQUAL((uint64_t)number(first, "reserved_bytes"), lease.bytes);
    const json_t *bound = json_array_get(json_object_get(first, "bindings"), 0);
    CU_ASSERT_STRING_EQUAL(text(bound, "instance"), "engine");
    CU_ASSERT_EQUAL(number(bound, "rank"), 4);
    CU_ASSERT_EQUAL(strlen(text(bound, "namespace")), 64);
    json_decref(sessions);

    json_t *arenas = ask(&tool, HL_ADMIN_ARENAS);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(arenas, "arenas")), 2);
    json_decref(arenas);
    json_t *check = ask(&tool, HL_ADMIN_CHECK);
    CU_ASSERT_TRUE(json_is_true(json_object_get(check, "ok")));
    json_decref(check);
    client_bye(&tool);
    client_bye(&engine);
    stand_close(&stand);
}

/* A canary for I2: the check finds a credit without an owner. */
static void a_check_names_a_credit_that_nobody_owns(void)
{
    static struct stand stand;
    struct client tool;
    stand_open(&stand, NULL);
    client_open(&tool, HL_PEER_TOOL);
    CU_ASSERT_TRUE(hl_budget_take(&stand.manager->gpus[0].permits, 1));
    HL_EXPECT_STATUS(hl_manager_check(stand.manager, &stand.err), HL_E_STATE, stand.err);
    CU_ASSERT_PTR_NOT_NULL(strstr(stand.err.text, "permits of GPU 0"));
    json_t *check = ask(&tool, HL_ADMIN_CHECK);
    CU_ASSERT_TRUE(json_is_false(json_object_get(check, "ok")));
    CU_ASSERT_STRING_EQUAL(text(check, "status"), "E_STATE");
    json_decref(check);
    hl_budget_give(&stand.manager->gpus[0].permits, 1);
    stand_check(&stand);
    HL_EXPECT_STATUS(hl_manager_check(NULL, &stand.err), HL_E_INVALID, stand.err);
    HL_EXPECT_STATUS(hl_manager_stats(stand.manager, NULL, &stand.err), HL_E_INVALID, stand.err);
    client_bye(&tool);
    stand_close(&stand);
}

/* --- quarantine --- */

/* Claims a restore and dies without a word about it. */
static void role_dies_while_copying(void)
{
    struct client client;
    if (!client_is_role())
        return;
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "doomed", 0);
    /* The parent puts the blocks there once it sees the binding. */
    struct hl_lease_message lease;
    do
        lease = client_query(&client, binding, 0, 2);
    while (lease.hits < 2);
    uint32_t generation = client_submit(&client, 9, binding, &lease);
    client_await(&client, 9, HL_GRANT_GRANTED);
    CU_ASSERT_TRUE_FATAL(hl_grant_move(client.grants, 9, generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    _exit(0);
}

/* Leaves one operation of a dead engine in quarantine, in session 0. */
static void quarantine_one(struct stand *stand)
{
    const struct client doomed = {.welcome.session = 0};
    int pid = client_spawn("role_dies_while_copying");
    while (stand_stats(stand).bindings == 0)
        stand_sync(stand);
    stand_put_blocks(stand, &doomed, 0, 2);
    CU_ASSERT_EQUAL(client_wait(pid), 0);
    while (stand_stats(stand).unresolved == 0)
        stand_sync(stand);
    CU_ASSERT_EQUAL(stand_stats(stand).sessions, 0);
    CU_ASSERT_EQUAL(stand_stats(stand).quarantined, 1);
    CU_ASSERT_EQUAL(stand_stats(stand).reserved_bytes, 2 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(hl_budget_used(&stand->manager->gpus[0].permits), 1);
    stand_check(stand);
}

/* The request that names the one operation in quarantine. */
static struct hl_admin name_quarantined(struct client *tool)
{
    struct hl_admin request = {.verb = HL_ADMIN_RELEASE, .confirmed = 1, .operator_name = "test"};
    json_t *answer = ask(tool, HL_ADMIN_QUARANTINE);
    const json_t *list = json_object_get(answer, "quarantine");
    CU_ASSERT_EQUAL_FATAL(json_array_size(list), 1);
    const json_t *one = json_array_get(list, 0);
    CU_ASSERT_STRING_EQUAL(text(one, "instance"), "doomed");
    CU_ASSERT_EQUAL(number(one, "record"), 9);
    CU_ASSERT_EQUAL(number(one, "source_bytes"), 2 * TEST_BLOCK_BYTES);
    CU_ASSERT_NOT_EQUAL(strlen(text(one, "reason")), 0);
    request.operation[0] = strtoull(text(one, "epoch"), NULL, 16);
    request.operation[1] = (uint64_t)number(one, "record") << 32 | (uint64_t)number(one, "generation");
    unsigned char token[8];
    for (int i = 0; i < 8; i++) {
        const char digits[3] = {text(one, "token8")[2 * i], text(one, "token8")[2 * i + 1], '\0'};
        token[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    memcpy(&request.operation[2], token, sizeof token);
    json_decref(answer);
    return request;
}

static void expect_refused(struct client *tool, struct hl_admin request, hl_status status, const char *why)
{
    client_request(tool, &request, HL_MESSAGE_ADMIN);
    client_expect_error(tool, status, why);
}

static void an_operator_releases_exactly_what_is_named(void)
{
    static struct stand stand;
    struct client tool;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    quarantine_one(&stand);
    client_open(&tool, HL_PEER_TOOL);
    struct hl_admin request = name_quarantined(&tool);
    for (int i = 0; i < 3; i++) {
        struct hl_admin other = request;
        other.operation[i] ^= 1;
        expect_refused(&tool, other, HL_E_NOT_FOUND, "");
    }
    CU_ASSERT_EQUAL(stand_stats(&stand).quarantined, 1);
    client_request(&tool, &request, HL_MESSAGE_ADMIN);
    client_expect(&tool, HL_MESSAGE_DONE, &packet);
    hl_packet_close_fds(&packet);
    CU_ASSERT_EQUAL(stand_stats(&stand).quarantined, 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).unresolved, 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 0);
    CU_ASSERT_EQUAL(hl_budget_used(&stand.manager->gpus[0].permits), 0);
    CU_ASSERT_TRUE(stand_logged(&stand, "test released"));
    stand_check(&stand);
    expect_refused(&tool, request, HL_E_NOT_FOUND, "");
    client_bye(&tool);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
}

static void a_release_without_confirmation_or_name_changes_nothing(void)
{
    static struct stand stand;
    struct client tool;
    stand_open(&stand, NULL);
    quarantine_one(&stand);
    client_open(&tool, HL_PEER_TOOL);
    struct hl_admin request = name_quarantined(&tool), unconfirmed = request, unnamed = request;
    unconfirmed.confirmed = 0;
    client_request(&tool, &unconfirmed, HL_MESSAGE_ADMIN);
    client_expect_error(&tool, HL_E_INVALID, "confirmed");
    memset(unnamed.operator_name, 0, sizeof unnamed.operator_name);
    client_request(&tool, &unnamed, HL_MESSAGE_ADMIN);
    client_expect_error(&tool, HL_E_INVALID, "operator");
    CU_ASSERT_EQUAL(stand_stats(&stand).quarantined, 1);
    client_bye(&tool);
    /* Stopping says so, and keeps what may still be read. */
    CU_ASSERT_EQUAL(stand_close(&stand), 1);
    CU_ASSERT_TRUE(stand_logged(&stand, "1 operations in quarantine"));
}

static void unresolved_sessions_count_until_they_are_released(void)
{
    static struct stand stand;
    static struct client clients[HL_SESSIONS];
    struct client tool, more;
    struct hl_hello hello;
    struct hl_packet packet;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    stand_open(&stand, NULL);
    quarantine_one(&stand);
    for (unsigned i = 1; i < HL_SESSIONS; i++)
        client_open(&clients[i], HL_PEER_ENGINE);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "one too many");
    client_connect(&more);
    client_send(&more, &hello, sizeof hello, NULL, 0);
    client_expect_error(&more, HL_E_BUDGET, "1 of them by dead engines");
    client_close(&more);
    client_open(&tool, HL_PEER_TOOL);
    struct hl_admin request = name_quarantined(&tool);
    client_request(&tool, &request, HL_MESSAGE_ADMIN);
    client_expect(&tool, HL_MESSAGE_DONE, &packet);
    hl_packet_close_fds(&packet);
    client_open(&clients[0], HL_PEER_ENGINE);
    CU_ASSERT_EQUAL(clients[0].welcome.session, 0);
    for (unsigned i = 0; i < HL_SESSIONS; i++)
        client_close(&clients[i]);
    client_bye(&tool);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
}

/* The successor of an engine whose operations are in quarantine registers under the same name. */
static void a_dead_engines_name_is_free(void)
{
    static struct stand stand;
    struct client successor;
    stand_open(&stand, NULL);
    quarantine_one(&stand);
    client_open(&successor, HL_PEER_ENGINE);
    uint32_t binding = client_register(&successor, "doomed", 0);
    CU_ASSERT_EQUAL(client_query(&successor, binding, 0, 2).hits, 2);
    client_bye(&successor);
    CU_ASSERT_EQUAL(stand_close(&stand), 1);
}

HL_TESTS(manager_admin, HL_CASE(status_sessions_and_arenas_say_what_is_there),
         HL_CASE(a_check_names_a_credit_that_nobody_owns),
         HL_CASE(an_operator_releases_exactly_what_is_named),
         HL_CASE(a_release_without_confirmation_or_name_changes_nothing),
         HL_CASE(unresolved_sessions_count_until_they_are_released), HL_CASE(a_dead_engines_name_is_free),
         HL_CASE(role_dies_while_copying));
