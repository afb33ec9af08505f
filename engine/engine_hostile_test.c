/* Plans and records that are not what they should be, and a device that refuses: the pages are what the
 * result says, whatever was accepted has drained, and where that cannot be shown the process ends. */
#include "engine/fake_peer.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *bank_at(struct fake *fake, uint32_t offset)
{
    return (unsigned char *)hl_grant_bank(fake->grants) + offset;
}

/* A spoilt part or record, in a fresh operation; `spoil` is called between placing and granting. */
static void expect_spoilt(void (*spoil)(struct fake *fake, struct hl_grant_record *record), hl_status status)
{
    struct fake fake;
    struct fake_client client;
    hl_error err = {0};
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 8);
    uint32_t record = fake_await_submission(&fake);
    struct hl_grant_record *shared = hl_grant_record_at(fake.grants, record);
    fake_prepare(&fake, record);
    fake_place(&fake, record, 64);
    spoil(&fake, shared);
    fake_publish_grant(&fake, record);
    HL_EXPECT_STATUS(hl_restore_wait(restore, -1, NULL, &err), status, err);
    CU_ASSERT_TRUE(err.text[0] != '\0');
    fake_await_state(&fake, record, HL_GRANT_DRAINED);
    CU_ASSERT_EQUAL(shared->status, status);
    CU_ASSERT_EQUAL(strncmp(shared->text, err.text, HL_GRANT_TEXT_BYTES - 1), 0);
    fake_expect_outcome(restore, status, true);
    fake_reap(&fake, record);
    /* The executor goes on: the same pages by the next operation. */
    for (uint32_t i = 0; i < FAKE_TENSORS; i++)
        memset(fake.expected[i], FAKE_POISON, fake.tensors[i].bytes);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    restore = fake_restore(&client, 0, 8);
    record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

static void flip_a_byte(struct fake *fake, struct hl_grant_record *record)
{
    bank_at(fake, record->bank_offset)[record->bank_bytes - 1] ^= 1;
}

/* A part that passes its checksum and names a page outside the tensor. */
static void leave_the_tensor(struct fake *fake, struct hl_grant_record *record)
{
    struct hl_plan_header *header = (void *)bank_at(fake, record->bank_offset);
    unsigned char *at =
        (unsigned char *)(header + 1) + header->allocation_count * sizeof(struct hl_plan_allocation);
    at += header->section_count * sizeof(struct hl_plan_section);
    CU_ASSERT_FATAL(header->range_count > 0);
    ((struct hl_plan_range *)(void *)at)->dst = 1ull << 40;
    hl_plan_seal(header, record->bank_bytes);
}

static void change_the_token(struct fake *fake, struct hl_grant_record *record)
{
    struct hl_plan_header *header = (void *)bank_at(fake, record->bank_offset);
    header->identity.token[0] ^= 1;
    hl_plan_seal(header, record->bank_bytes);
}

static void skip_a_part(struct fake *fake, struct hl_grant_record *record)
{
    (void)fake;
    record->part_index = 1;
    record->part_count = 2;
}

static void leave_the_bank(struct fake *fake, struct hl_grant_record *record)
{
    (void)fake;
    record->bank_offset = HL_PLAN_PART_BYTES - 64;
}

static void shrink_to_nothing(struct fake *fake, struct hl_grant_record *record)
{
    (void)fake;
    record->bank_bytes = 8;
}

static void promise_more_parts(struct fake *fake, struct hl_grant_record *record)
{
    (void)fake;
    record->part_count = 2;
}

/* F5, I3, I4 */
static void spoilt_grants_touch_no_page(void)
{
    expect_spoilt(flip_a_byte, HL_E_CHECKSUM);
    expect_spoilt(leave_the_tensor, HL_E_RANGE);
    expect_spoilt(change_the_token, HL_E_STATE);
    expect_spoilt(skip_a_part, HL_E_PROTOCOL);
    expect_spoilt(leave_the_bank, HL_E_PROTOCOL);
    expect_spoilt(shrink_to_nothing, HL_E_PROTOCOL);
    expect_spoilt(promise_more_parts, HL_E_PROTOCOL);
}

static void a_spoilt_later_part_ends_it_after_the_drain(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *restore = fake_restore(&client, 0, 24);
    uint32_t record = fake_grant_next(&fake);
    fake_await_state(&fake, record, HL_GRANT_PART_DRAINED);
    fake_place(&fake, record, 0);
    flip_a_byte(&fake, hl_grant_record_at(fake.grants, record));
    fake_publish_grant(&fake, record);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_E_CHECKSUM, false);
    fake_close_all(&fake, &client);
}

/* A whole, valid plan of other blocks than were asked for. */
static void a_plan_of_another_size_is_no_success(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 8);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    struct fake_operation *operation = &fake.operations[record];
    struct hl_plan_request request = {
        .layout = fake.layout,
        .identity = {.epoch = fake.epoch, .record = record, .generation = operation->generation},
        .blocks = operation->blocks,
        .block_count = operation->block_count - 1,
        .chunk_bytes = hl_arena_chunk_bytes(fake.arenas[0])};
    memcpy(request.identity.token, fake.token, sizeof fake.token);
    hl_plan_free(operation->plan);
    operation->plan = NULL;
    HL_REQUIRE_OK(hl_plan_compile(&request, &operation->plan, &client.err), client.err);
    fake_grant(&fake, record, 0);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_E_CORRUPT, false);
    fake_close_all(&fake, &client);
}

/* G4, I4: words that no history of the operation explains. The session is lost, the record is never used
 * again. */
static void a_scribbled_word_loses_the_session(void)
{
    static const uint64_t words[] = {1ull << 32 | HL_GRANT_ACTIVE, 1ull << 32 | HL_GRANT_FREE,
                                     2ull << 32 | HL_GRANT_GRANTED, 1ull << 32 | 77,
                                     1ull << 32 | HL_GRANT_PART_DRAINED};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct fake fake;
        struct fake_client client;
        fake_open_all(&fake, &client);
        hl_restore *restore = fake_restore(&client, 0, 2);
        uint32_t record = fake_await_submission(&fake);
        atomic_store(&hl_grant_record_at(fake.grants, record)->word, words[i]);
        fake_wake(&fake);
        fake_expect_outcome(restore, HL_E_PROTOCOL, true);
        fake_await_loss(&client, HL_E_PROTOCOL);
        fake_close_all(&fake, &client);
    }
}

/* An unknown status, and unterminated text, from the Manager. */
static void an_outcome_without_sense_loses_the_session(void)
{
    for (int i = 0; i < 2; i++) {
        struct fake fake;
        struct fake_client client;
        fake_open_all(&fake, &client);
        hl_restore *restore = fake_restore(&client, 0, 2);
        uint32_t record = fake_await_submission(&fake);
        fake_prepare(&fake, record);
        struct hl_grant_record *shared = hl_grant_record_at(fake.grants, record);
        shared->status = i ? -7777 : HL_E_EXPIRED;
        memset(shared->text, i ? 0 : 'x', sizeof shared->text);
        CU_ASSERT_TRUE(fake_move(&fake, record, HL_GRANT_PREPARING, HL_GRANT_REJECTED));
        fake_wake(&fake);
        fake_expect_outcome(restore, HL_E_PROTOCOL, true);
        fake_await_loss(&client, HL_E_PROTOCOL);
        fake_close_all(&fake, &client);
    }
}

/* A part is on the device when its record is scribbled over: it drains, then the operation ends. */
static void a_word_scribbled_under_a_copy_ends_it_after_the_drain(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *restore = fake_restore(&client, 0, 24);
    hl_stream stream = hl_transfer_stream(client.binding->transfer);
    hl_software_hold(fake.dev, stream, 0);
    uint32_t record = fake_grant_next(&fake);
    hl_software_wait_held(fake.dev, stream);
    while (atomic_load(&hl_grant_record_at(fake.grants, record)->consumed) != 1)
        fake_await_fd(fake.retirement_fd);
    atomic_store(&hl_grant_record_at(fake.grants, record)->word, 1ull << 32 | HL_GRANT_REVOKED);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    hl_software_release(fake.dev, stream);
    fake_expect_outcome(restore, HL_E_PROTOCOL, false);
    fake_await_loss(&client, HL_E_PROTOCOL);
    fake_close_all(&fake, &client);
}

/* Success is this side's to say once it has claimed. */
static void a_success_that_nobody_reported_is_none(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *restore = fake_restore(&client, 0, 24);
    uint32_t record = fake_grant_next(&fake);
    fake_await_state(&fake, record, HL_GRANT_PART_DRAINED);
    hl_grant_record_at(fake.grants, record)->status = HL_OK;
    atomic_store(&hl_grant_record_at(fake.grants, record)->word, 1ull << 32 | HL_GRANT_COMPLETED);
    fake_wake(&fake);
    fake_expect_outcome(restore, HL_E_PROTOCOL, false);
    fake_close_all(&fake, &client);
}

/* R11, I4: a settled record that comes back with another generation is never used again. */
static void a_settled_record_with_another_generation_is_dropped(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    uint32_t record = fake_grant_next(&fake);
    fake_await_state(&fake, record, HL_GRANT_DRAINED);
    fake_expect_outcome(restore, HL_OK, false);
    atomic_store(&hl_grant_record_at(fake.grants, record)->word, 5ull << 32 | HL_GRANT_REAPED);
    fake_wake(&fake);
    restore = fake_restore(&client, 0, 2);
    uint32_t other = fake_grant_next(&fake);
    CU_ASSERT_NOT_EQUAL(other, record);
    fake_await_and_reap(&fake, other);
    fake_expect_outcome(restore, HL_OK, false);
    fake_close_all(&fake, &client);
    CU_ASSERT_EQUAL(fake.received[HL_MESSAGE_BYE], 1);
}

/* R11: a record that was free and is not any more is refused when it is to be used. */
static void a_free_record_that_changed_is_refused(void)
{
    struct fake fake;
    struct fake_client client;
    const uint32_t page = 0;
    hl_restore *restore = NULL;
    hl_restore_request request;
    fake_open_all(&fake, &client);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        atomic_store(&hl_grant_record_at(fake.grants, i)->word, 9ull << 32 | HL_GRANT_REAPED);
    hl_restore_request_init(&request);
    hl_restore_source source = {.lease = fake_query(&client, 0, 1), .pages = &page, .count = 1};
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), HL_E_PROTOCOL,
                     client.err);
    fake_await_loss(&client, HL_E_PROTOCOL);
    hl_lease_release(source.lease);
    fake_close_all(&fake, &client);
}

/* F5: each submission of a restore fails once: whatever was accepted drains, the record says DRAINED with the
 * failure, and the next operation is whole. */
static void every_failed_submission_drains_first(void)
{
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        struct fake fake;
        struct fake_client client;
        hl_restore_result result;
        fake_open_all(&fake, &client);
        hl_restore *restore = fake_restore(&client, 0, 8);
        uint32_t record = fake_await_submission(&fake);
        fake_prepare(&fake, record);
        hl_software_fail_submit(fake.dev, nth, 2);
        fake_grant(&fake, record, 0);
        hl_status status = hl_restore_wait(restore, -1, &result, &client.err);
        failed = status != HL_OK;
        hl_software_fail_submit(fake.dev, 0, 0);
        if (failed)
            CU_ASSERT_EQUAL(result.untouched && nth > 1, false);
        fake_await_state(&fake, record, HL_GRANT_DRAINED);
        CU_ASSERT_EQUAL(hl_grant_record_at(fake.grants, record)->status, status);
        fake_reap(&fake, record);
        hl_restore_close(restore);
        restore = fake_restore(&client, 0, 8);
        record = fake_grant_next(&fake);
        fake_await_and_reap(&fake, record);
        fake_expect_outcome(restore, HL_OK, false);
        CU_ASSERT_TRUE(fake_tensors_match(&fake));
        fake_close_all(&fake, &client);
        CU_ASSERT_FATAL(nth < 1000);
    }
}

#define DEATH "HOSTLANE_ENGINE_DEATH"

static void die_of_an_undrained_copy(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 8);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    hl_software_fail_execution(fake.dev, 1, 700);
    fake_grant(&fake, record, 0);
    hl_restore_wait(restore, -1, NULL, NULL);
    _exit(0); /* an outcome was reported: the test fails */
}

/* The Manager's own worker was writing the pages when the Manager died. */
static void die_of_a_lost_manager_worker(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open(&fake);
    fake_start_victim(&fake);
    fake_connect(&fake, &client, NULL, 0);
    fake_register(&client);
    hl_restore *restore = fake_restore(&client, 0, 8);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    if (!fake_move(&fake, record, HL_GRANT_PREPARING, HL_GRANT_MANAGED))
        _exit(1);
    fake_wake(&fake);
    fake_kill_victim(&fake);
    hl_restore_wait(restore, -1, NULL, NULL);
    _exit(0);
}

/* Runs the case again in a process of its own, which must die there. */
static void expect_death(const char *test_case, void (*die)(void))
{
    extern char **environ;
    char self[] = "/proc/self/exe";
    char *arguments[] = {self, (char *)(uintptr_t)test_case, NULL};
    int pid = 0, status = 0;
    if (getenv(DEATH)) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        die();
        return;
    }
    char *xml = getenv("XML_OUTPUT_FILE");
    char *kept = xml ? strdup(xml) : NULL;
    unsetenv("XML_OUTPUT_FILE");
    setenv(DEATH, "1", 1);
    CU_ASSERT_EQUAL_FATAL(posix_spawn(&pid, self, NULL, NULL, arguments, environ), 0);
    unsetenv(DEATH);
    if (kept)
        setenv("XML_OUTPUT_FILE", kept, 1);
    free(kept);
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* I9: the copy stream has failed, so that nobody knows what it still does: no result, no drain evidence. */
static void undrained_work_ends_the_process(void)
{
    expect_death("undrained_work_ends_the_process", die_of_an_undrained_copy);
}

static void a_managers_lost_worker_ends_the_process(void)
{
    expect_death("a_managers_lost_worker_ends_the_process", die_of_a_lost_manager_worker);
}

HL_TESTS(engine_hostile, HL_CASE(spoilt_grants_touch_no_page),
         HL_CASE(a_spoilt_later_part_ends_it_after_the_drain), HL_CASE(a_plan_of_another_size_is_no_success),
         HL_CASE(a_scribbled_word_loses_the_session), HL_CASE(an_outcome_without_sense_loses_the_session),
         HL_CASE(a_free_record_that_changed_is_refused), HL_CASE(every_failed_submission_drains_first),
         HL_CASE(undrained_work_ends_the_process), HL_CASE(a_managers_lost_worker_ends_the_process),
         HL_CASE(a_word_scribbled_under_a_copy_ends_it_after_the_drain),
         HL_CASE(a_success_that_nobody_reported_is_none),
         HL_CASE(a_settled_record_with_another_generation_is_dropped));
