#include "core/weights/store/golden_testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"

static const char *const names[] = {"READY.json", "manifest.json", HL_GOLDEN_FILE};

/* Where the golden files lie: the tests run in the repository's root. */
static const char source[] = "core/weights/store/testdata/golden";

#define REQUIRE(condition) CU_ASSERT_TRUE_FATAL(condition)

/* Their bytes, read once: a child of another user may not be able to. */
static struct {
    char *text;
    size_t bytes;
} golden[3];

static char *read_source(const char *name, size_t *bytes)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", source, name);
    FILE *file = fopen(path, "rb");
    REQUIRE(file && fstat(fileno(file), &st) == 0);
    char *text = malloc((size_t)st.st_size);
    REQUIRE(text && fread(text, 1, (size_t)st.st_size, file) == (size_t)st.st_size);
    fclose(file);
    *bytes = (size_t)st.st_size;
    return text;
}

void hl_golden_load(void)
{
    for (size_t i = 0; i < 3; i++)
        if (!golden[i].text)
            golden[i].text = read_source(names[i], &golden[i].bytes);
}

void hl_golden_lay(struct hl_store_fixture *fixture, const char *key)
{
    char path[512], folder[512];
    hl_fixture_store(fixture);
    snprintf(folder, sizeof folder, "%s/artifacts/%s", fixture->root, key);
    REQUIRE(mkdir(folder, 0700) == 0);
    hl_golden_load();
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "artifacts/%s/%s", key, names[i]);
        hl_fixture_overwrite(fixture, path, golden[i].text, golden[i].bytes);
    }
    REQUIRE(chmod(folder, 0555) == 0);
}

void hl_golden_renew(struct hl_store_fixture *fixture)
{
    hl_fixture_remove(fixture, HL_GOLDEN_ENTRY);
    hl_fixture_remove(fixture, "deny/" HL_GOLDEN_KEY ".json");
    hl_golden_lay(fixture, HL_GOLDEN_KEY);
}

/* --- documents --- */

static char *replace(const char *text, size_t bytes, const char *from, const char *to, size_t *size)
{
    const char *at = memmem(text, bytes, from, strlen(from));
    REQUIRE(at != NULL);
    const size_t before = (size_t)(at - text), after = bytes - before - strlen(from);
    char *edited = malloc(bytes + strlen(to) + 1);
    REQUIRE(edited != NULL);
    const size_t added = strlen(to);
    memcpy(edited, text, before);
    memcpy(edited + before, to, added + 1);
    memcpy(edited + before + added, at + strlen(from), after);
    *size = before + added + after;
    edited[*size] = '\0';
    return edited;
}

static void write_ready(struct hl_store_fixture *fixture, const struct hl_ready *ready)
{
    struct hl_text text = {0};
    hl_ready_put(&text, ready);
    hl_fixture_overwrite(fixture, HL_GOLDEN_ENTRY "/READY.json", text.bytes, text.size);
    hl_text_free(&text);
}

static struct hl_ready read_ready(struct hl_store_fixture *fixture)
{
    struct hl_ready ready;
    size_t bytes;
    hl_error err;
    char *text = hl_fixture_read(fixture, HL_GOLDEN_ENTRY "/READY.json", &bytes);
    HL_REQUIRE_OK(hl_ready_parse(text, bytes, &ready, &err), err);
    free(text);
    return ready;
}

void hl_golden_edit_manifest(struct hl_store_fixture *fixture, const char *from, const char *to)
{
    size_t bytes, size;
    char *text = hl_fixture_read(fixture, HL_GOLDEN_ENTRY "/manifest.json", &bytes);
    char *edited = replace(text, bytes, from, to, &size);
    struct hl_ready ready = read_ready(fixture);
    REQUIRE(hl_sha256(edited, size, ready.manifest_sha256, NULL) == HL_OK);
    hl_fixture_overwrite(fixture, HL_GOLDEN_ENTRY "/manifest.json", edited, size);
    write_ready(fixture, &ready);
    free(edited);
    free(text);
}

void hl_golden_edit_ready(struct hl_store_fixture *fixture, const char *from, const char *to)
{
    size_t bytes, size;
    char *text = hl_fixture_read(fixture, HL_GOLDEN_ENTRY "/READY.json", &bytes);
    char *edited = replace(text, bytes, from, to, &size);
    hl_fixture_overwrite(fixture, HL_GOLDEN_ENTRY "/READY.json", edited, size);
    free(edited);
    free(text);
}

void hl_golden_forge(struct hl_store_fixture *fixture,
                     void (*change)(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files))
{
    size_t bytes;
    hl_error err;
    hl_manifest *old = NULL, *forged = NULL;
    char *text = hl_fixture_read(fixture, HL_GOLDEN_ENTRY "/manifest.json", &bytes);
    HL_REQUIRE_OK(hl_manifest_parse(text, bytes, &old, &err), err);
    free(text);
    struct hl_manifest_tensor tensors[2] = {old->tensors[0], old->tensors[1]};
    struct hl_manifest_file files[1] = {old->files[0]};
    text = hl_fixture_read(fixture, HL_GOLDEN_PAYLOAD, &bytes);
    files[0].bytes = bytes;
    REQUIRE(hl_sha256(text, bytes, files[0].sha256, NULL) == HL_OK);
    free(text);
    if (change)
        change(tensors, files);
    const struct hl_manifest_parts parts = {old->identity, tensors, 2, files, 1, NULL};
    HL_REQUIRE_OK(hl_manifest_build(&parts, &forged, &err), err);
    struct hl_ready ready = read_ready(fixture);
    memcpy(ready.manifest_sha256, forged->canonical_sha256, sizeof ready.manifest_sha256);
    memcpy(ready.content_sha256, forged->content_sha256, sizeof ready.content_sha256);
    hl_fixture_overwrite(fixture, HL_GOLDEN_ENTRY "/manifest.json", forged->canonical,
                         forged->canonical_bytes);
    write_ready(fixture, &ready);
    hl_manifest_free(forged);
    hl_manifest_free(old);
}

/* --- entries --- */

void hl_golden_add_file(struct hl_store_fixture *fixture, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, HL_GOLDEN_ENTRY "/%s", name);
    hl_fixture_chmod(fixture, HL_GOLDEN_ENTRY, 0755);
    hl_fixture_overwrite(fixture, path, "x", 1);
    hl_fixture_chmod(fixture, HL_GOLDEN_ENTRY, 0555);
}

void hl_golden_make_link(struct hl_store_fixture *fixture, const char *name, bool hard)
{
    char entry[600], outside[600];
    snprintf(entry, sizeof entry, "%s/" HL_GOLDEN_ENTRY "/%s", fixture->root, name);
    snprintf(outside, sizeof outside, "%s/tmp/outside", fixture->root);
    hl_fixture_chmod(fixture, HL_GOLDEN_ENTRY, 0755);
    unlink(outside);
    REQUIRE(link(entry, outside) == 0);
    if (!hard)
        REQUIRE(unlink(entry) == 0 && symlink(outside, entry) == 0);
    hl_fixture_chmod(fixture, HL_GOLDEN_ENTRY, 0555);
}

/* --- the process --- */

unsigned hl_open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    REQUIRE(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

unsigned hl_mappings_of(const char *path)
{
    char line[1024];
    unsigned count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    REQUIRE(maps != NULL);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, path))
            count++;
    fclose(maps);
    return count;
}
