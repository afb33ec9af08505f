/* Opening domains: what is created, what is compared, and what is refused before anything is created. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store.h"
#include "core/weights/store/store_testing.h"

static hl_weight_failure failure;
static hl_weight_store *store;

static hl_status open_with(const hl_weight_store_options *options)
{
    store = NULL;
    return hl_weight_store_open(options, &store, &failure);
}

static void a_domain_is_created_once_and_opened_again_as_it_is(void)
{
    static const char *const folders[] = {"locks", "artifacts", "tmp", "quarantine", "deny"};
    struct hl_store_fixture fixture;
    size_t bytes[3];
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, ""), 0700);
    for (size_t i = 0; i < 5; i++)
        CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, folders[i]), 0700);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, "domain.json"), 0444);
    char *domain = hl_fixture_read(&fixture, "domain.json", &bytes[0]);
    char *policy = hl_fixture_read(&fixture, "domain-policy.json", &bytes[1]);
    CU_ASSERT_PTR_NOT_NULL(strstr(domain, "\"backend\":\"local_filesystem\""));
    CU_ASSERT_STRING_EQUAL(policy, "{\"eviction\":\"none\",\"max_artifact_bytes\":null,\"max_store_bytes\":"
                                   "null,\"min_free_bytes\":0,\"policy_version\":1,\"schema_version\":1}");
    hl_fixture_reopen(&fixture);
    char *again = hl_fixture_read(&fixture, "domain.json", &bytes[2]);
    CU_ASSERT_STRING_EQUAL(domain, again);
    free(again);
    free(policy);
    free(domain);
    hl_fixture_close(&fixture);
}

static void a_trailing_slash_names_the_same_domain(void)
{
    struct hl_store_fixture fixture;
    char path[sizeof fixture.root + 4];
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    snprintf(path, sizeof path, "%s///", fixture.root);
    fixture.options.root = path;
    HL_REQUIRE_OK(open_with(&fixture.options), failure.error);
    CU_ASSERT_STRING_EQUAL(store->root_path, fixture.root);
    hl_weight_store_close(store);
    hl_fixture_close(&fixture);
}

static void expect_config(const hl_weight_store_options *options, const char *named)
{
    HL_EXPECT_FAILURE(open_with(options), HL_WEIGHT_INVALID_CONFIG, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, named));
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_CONFIGURATION);
}

static void wrong_options_are_named_and_touch_nothing(void)
{
    struct hl_store_fixture fixture;
    char long_id[HL_NAME_BYTES + 1];
    memset(long_id, 'x', sizeof long_id - 1);
    long_id[sizeof long_id - 1] = 0;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    expect_config(NULL, "size");
    hl_weight_store_options o;
#define WRONG(field, value, named)                                                                           \
    do {                                                                                                     \
        o = fixture.options;                                                                                 \
        o.field = (value);                                                                                   \
        expect_config(&o, named);                                                                            \
    } while (0)
    WRONG(size, 8, "size");
    WRONG(root, NULL, "root");
    WRONG(root, "relative/path", "root");
    WRONG(root, "/", "root");
    WRONG(root, "/tmp/..", "root");
    WRONG(root, "/tmp/./", "root");
    WRONG(scope, (hl_weight_scope)7, "scope");
    WRONG(storage_class, (hl_weight_storage_class)7, "storage_class");
    WRONG(domain_id, "", "domain_id");
    WRONG(domain_id, long_id, "domain_id");
    WRONG(domain_id, "\xff", "domain_id");
    WRONG(max_artifact_bytes, 0, "max_artifact_bytes");
    WRONG(max_store_bytes, 0, "max_store_bytes");
    WRONG(min_free_bytes, HL_WEIGHT_NO_LIMIT, "min_free_bytes");
    WRONG(admission, (hl_weight_admission)7, "admission");
    WRONG(admission, HL_WEIGHT_ADMISSION_SERIALIZED, "max_store_bytes");
    WRONG(coordination_timeout_ns, 0, "coordination_timeout_ns");
    WRONG(coordination_timeout_ns, -1, "coordination_timeout_ns");
    WRONG(aligned_layout, 2, "aligned_layout");
#undef WRONG
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, ""));
    hl_fixture_close(&fixture);
}

static void expect_mismatch(const hl_weight_store_options *options, const char *field)
{
    char named[64];
    snprintf(named, sizeof named, "\"field\":\"%s\"", field);
    HL_EXPECT_FAILURE(open_with(options), HL_WEIGHT_DOMAIN_POLICY_MISMATCH, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, field));
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, named));
}

static void every_setting_that_differs_from_the_domains_is_refused(void)
{
    struct hl_store_fixture fixture;
    size_t bytes[2];
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    fixture.options.max_store_bytes = 1u << 30;
    hl_fixture_store(&fixture);
    char *before = hl_fixture_read(&fixture, "domain-policy.json", &bytes[0]);
    hl_weight_store_options o;
#define DIFFERS(field, value)                                                                                \
    do {                                                                                                     \
        o = fixture.options;                                                                                 \
        o.field = (value);                                                                                   \
        expect_mismatch(&o, #field);                                                                         \
    } while (0)
    DIFFERS(scope, HL_WEIGHT_SCOPE_NUMA);
    DIFFERS(domain_id, "another");
    DIFFERS(max_artifact_bytes, 1u << 20);
    DIFFERS(max_store_bytes, 1u << 20);
    DIFFERS(min_free_bytes, 1);
    DIFFERS(admission, HL_WEIGHT_ADMISSION_SERIALIZED);
#undef DIFFERS
    char *after = hl_fixture_read(&fixture, "domain-policy.json", &bytes[1]);
    CU_ASSERT_STRING_EQUAL(before, after);
    free(after);
    free(before);
    hl_fixture_close(&fixture);
}

/* Replaces `from` in a document of the domain. */
static void edit(struct hl_store_fixture *fixture, const char *name, const char *from, const char *to)
{
    size_t bytes;
    char *text = hl_fixture_read(fixture, name, &bytes);
    char *at = strstr(text, from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    char edited[2048];
    int size = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    hl_fixture_overwrite(fixture, name, edited, (size_t)size);
    free(text);
}

static void documents_of_another_file_system_or_schema_are_refused(void)
{
    static const struct {
        const char *name, *from, *to;
    } edits[] = {
        {"domain.json", "\"schema_version\":1", "\"schema_version\":2"},
        {"domain.json", "local_filesystem", "object_store"},
        {"domain.json", "\"scope\":\"node\"", "\"scope\":\"rack\""},
        {"domain-policy.json", "\"eviction\":\"none\"", "\"eviction\":\"lru\""},
        {"domain-policy.json", "\"schema_version\":1", "\"schema_version\":9"},
        {"domain-policy.json", "}", ",\"more\":1}"},
    };
    struct hl_store_fixture fixture;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        hl_fixture_open(&fixture, HL_FIXTURE_DISK);
        hl_fixture_store(&fixture);
        edit(&fixture, edits[i].name, edits[i].from, edits[i].to);
        HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_DOMAIN_POLICY_MISMATCH, false, failure);
        CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, edits[i].name));
        hl_fixture_close(&fixture);
    }
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    edit(&fixture, "domain.json", "\"filesystem_type\":\"", "\"filesystem_type\":\"x");
    expect_mismatch(&fixture.options, "filesystem_type");
    fixture.options.adopt = true; /* a copy on another file system is no domain to adopt, either */
    expect_mismatch(&fixture.options, "filesystem_type");
    hl_fixture_close(&fixture);
}

static void the_wrong_storage_class_is_refused_before_the_root_is_made(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    CU_ASSERT_EQUAL(fixture.options.storage_class, HL_WEIGHT_TMPFS);
    fixture.options.storage_class = HL_WEIGHT_DISK;
    HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_STORAGE_CLASS_MISMATCH, false, failure);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, ""));
    fixture.options.storage_class = HL_WEIGHT_TMPFS;
    HL_REQUIRE_OK(open_with(&fixture.options), failure.error);
    CU_ASSERT_STRING_EQUAL(store->domain.filesystem_type, "tmpfs");
    hl_weight_store_close(store);
    hl_fixture_close(&fixture);
}

static void an_unknown_file_system_is_refused_and_nothing_is_made(void)
{
    hl_weight_store_options options;
    hl_weight_store_options_init(&options);
    options.root = "/proc/hostlane-weights";
    HL_EXPECT_FAILURE(open_with(&options), HL_WEIGHT_UNSUPPORTED, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "proc"));
    options.root = "/proc/self";
    options.read_only = true;
    HL_EXPECT_FAILURE(open_with(&options), HL_WEIGHT_DOMAIN_UNAVAILABLE, false, failure); /* a link */
}

static void what_is_missing_is_not_invented(void)
{
    struct hl_store_fixture fixture;
    char path[sizeof fixture.root + 8];
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    snprintf(path, sizeof path, "%s/deeper", fixture.root);
    hl_weight_store_options o = fixture.options;
    o.root = path;
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    o = fixture.options;
    o.read_only = true;
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    o.read_only = false;
    o.adopt = true;
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, ""));
    CU_ASSERT_EQUAL_FATAL(mkdir(fixture.root, 0700), 0);
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "domain.json"));
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "", ""), 0); /* adopting made no folder */
    hl_fixture_close(&fixture);
}

static void a_domain_without_its_policy_is_completed_by_a_writer_only(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    hl_fixture_remove(&fixture, "domain-policy.json"); /* as after a crash between the two */
    hl_weight_store_options o = fixture.options;
    o.adopt = true;
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "domain-policy.json"));
    hl_fixture_reopen(&fixture);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, "domain-policy.json"));
    hl_fixture_close(&fixture);
}

static void folders_and_documents_that_others_could_change_are_refused(void)
{
    static const struct {
        const char *path;
        unsigned wrong, right;
    } modes[] = {{"", 0777, 0700},
                 {"", 0770, 0700},
                 {"locks", 0770, 0700},
                 {"deny", 0707, 0700},
                 {"domain.json", 0644, 0444},
                 {"domain-policy.json", 0644, 0444}};
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        hl_fixture_chmod(&fixture, modes[i].path, modes[i].wrong);
        HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_DOMAIN_UNAVAILABLE, false, failure);
        hl_weight_store_options o = fixture.options;
        o.trust_permissions = false;
        HL_REQUIRE_OK(open_with(&o), failure.error);
        hl_weight_store_close(store);
        hl_fixture_chmod(&fixture, modes[i].path, modes[i].right);
    }
    hl_fixture_close(&fixture);
}

static void a_link_or_a_file_in_the_place_of_the_root_is_refused(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    CU_ASSERT_EQUAL_FATAL(symlink("elsewhere", fixture.root), 0);
    HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_DOMAIN_UNAVAILABLE, false, failure);
    CU_ASSERT_EQUAL_FATAL(unlink(fixture.root), 0);
    const int fd = open(fixture.root, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    close(fd);
    HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_DOMAIN_UNAVAILABLE, false, failure);
    hl_fixture_close(&fixture);
}

static void the_wait_for_another_opener_is_bounded(void)
{
    struct hl_store_fixture fixture;
    char path[sizeof fixture.root + 32];
    size_t bytes[2];
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    char *before = hl_fixture_read(&fixture, "domain.json", &bytes[0]);
    snprintf(path, sizeof path, "%s/locks/domain-init.lock", fixture.root);
    const int held = open(path, O_RDWR | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(held >= 0 && flock(held, LOCK_EX) == 0);
    hl_weight_store_options o = fixture.options;
    o.coordination_timeout_ns = 1000000;
    HL_EXPECT_FAILURE(open_with(&o), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "timed out waiting for domain-init.lock"));
    char *after = hl_fixture_read(&fixture, "domain.json", &bytes[1]);
    CU_ASSERT_STRING_EQUAL(before, after);
    const int other = open(path, O_RDWR | O_CLOEXEC); /* the waiter did not unlock the owner */
    CU_ASSERT_TRUE(flock(other, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    close(other);
    o.adopt = true; /* nothing to write, nothing to wait for */
    HL_REQUIRE_OK(open_with(&o), failure.error);
    hl_weight_store_close(store);
    o.adopt = false;
    close(held);
    HL_REQUIRE_OK(open_with(&o), failure.error);
    hl_weight_store_close(store);
    free(after);
    free(before);
    hl_fixture_close(&fixture);
}

/* Only who holds the init lock may take them for a dead one's. */
static void what_dead_openers_left_is_removed_by_a_writer_only(void)
{
    static const char *const left[] = {".domain.json.0123456789abcdef0123456789abcdef.tmp",
                                       ".domain-policy.json.00000000000000000000000000000000.tmp"};
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    const unsigned entries = hl_fixture_count(&fixture, "", "");
    for (size_t i = 0; i < 2; i++)
        hl_fixture_overwrite(&fixture, left[i], "{", 1);
    hl_fixture_overwrite(&fixture, ".domain.json.tmp", "somebody else's", 15);
    for (size_t i = 0; i < 2; i++) {
        hl_weight_store_options o = fixture.options;
        o.read_only = i == 0;
        o.adopt = i == 1;
        HL_REQUIRE_OK(open_with(&o), failure.error);
        hl_weight_store_close(store);
        CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "", ""), entries + 3);
    }
    hl_fixture_reopen(&fixture);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "", ""), entries + 1);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, ".domain.json.tmp"));
    hl_fixture_close(&fixture);
}

static void tools_adopt_the_settings_they_find(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    fixture.options.scope = HL_WEIGHT_SCOPE_NUMA;
    fixture.options.domain_id = "numa-1";
    fixture.options.max_store_bytes = 1u << 30;
    fixture.options.admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    hl_fixture_store(&fixture);
    hl_weight_store_options o;
    hl_weight_store_options_init(&o);
    o.root = fixture.root;
    o.adopt = true;
    HL_REQUIRE_OK(open_with(&o), failure.error);
    CU_ASSERT_EQUAL(store->domain.scope, HL_WEIGHT_SCOPE_NUMA);
    CU_ASSERT_STRING_EQUAL(store->domain.domain_id, "numa-1");
    CU_ASSERT_EQUAL(store->policy.max_store_bytes, 1u << 30);
    CU_ASSERT_EQUAL(store->policy.admission, HL_WEIGHT_ADMISSION_SERIALIZED);
    hl_weight_store_close(store);
    hl_fixture_close(&fixture);
}

static int open_as_nobody(void *context)
{
    struct hl_store_fixture *fixture = context;
    if (open_with(&fixture->options) != HL_OK)
        return 1;
    hl_weight_store_close(store);
    return 0;
}

static int open_foreign_as_nobody(void *context)
{
    struct hl_store_fixture *fixture = context;
    const bool refused =
        open_with(&fixture->options) == HL_E_SYSTEM && failure.code == HL_WEIGHT_DOMAIN_UNAVAILABLE;
    return refused ? 0 : 1;
}

static void a_domain_belongs_to_the_user_who_opens_it(void)
{
    struct hl_store_fixture fixture;
    if (!hl_child_require_second_user())
        return;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    CU_ASSERT_EQUAL(hl_child_run_as_nobody(&fixture, open_as_nobody, &fixture), 0);
    HL_EXPECT_FAILURE(open_with(&fixture.options), HL_WEIGHT_DOMAIN_UNAVAILABLE, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "65534"));
    hl_fixture_remove(&fixture, "");
    hl_fixture_store(&fixture); /* the present user's: closed to the other */
    CU_ASSERT_EQUAL(hl_child_run_as_nobody(&fixture, open_foreign_as_nobody, &fixture), 0);
    hl_fixture_close(&fixture);
}

static void keys_are_sixty_four_lower_case_digits(void)
{
    char key[66] = HL_GOLDEN_KEY;
    CU_ASSERT_TRUE(hl_store_key_is_valid(key));
    CU_ASSERT_FALSE(hl_store_key_is_valid(NULL));
    CU_ASSERT_FALSE(hl_store_key_is_valid(""));
    CU_ASSERT_FALSE(hl_store_key_is_valid(key + 1));
    key[3] = 'A';
    CU_ASSERT_FALSE(hl_store_key_is_valid(key));
    key[3] = '/';
    CU_ASSERT_FALSE(hl_store_key_is_valid(key));
    memset(key, '0', 65);
    CU_ASSERT_FALSE(hl_store_key_is_valid(key));
}

HL_TESTS(store_domain, HL_CASE(a_domain_is_created_once_and_opened_again_as_it_is),
         HL_CASE(a_trailing_slash_names_the_same_domain), HL_CASE(wrong_options_are_named_and_touch_nothing),
         HL_CASE(every_setting_that_differs_from_the_domains_is_refused),
         HL_CASE(documents_of_another_file_system_or_schema_are_refused),
         HL_CASE(the_wrong_storage_class_is_refused_before_the_root_is_made),
         HL_CASE(an_unknown_file_system_is_refused_and_nothing_is_made),
         HL_CASE(what_is_missing_is_not_invented),
         HL_CASE(a_domain_without_its_policy_is_completed_by_a_writer_only),
         HL_CASE(folders_and_documents_that_others_could_change_are_refused),
         HL_CASE(a_link_or_a_file_in_the_place_of_the_root_is_refused),
         HL_CASE(the_wait_for_another_opener_is_bounded),
         HL_CASE(what_dead_openers_left_is_removed_by_a_writer_only),
         HL_CASE(tools_adopt_the_settings_they_find), HL_CASE(a_domain_belongs_to_the_user_who_opens_it),
         HL_CASE(keys_are_sixty_four_lower_case_digits));
