#include "manager/settings.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "manager/socket_path.h"

static const char stage[] = "manager.settings";

enum type { TYPE_PATH, TYPE_BYTES, TYPE_COUNT, TYPE_NODE, TYPE_BOOL, TYPE_PAGES, TYPE_LEVEL };

struct setting {
    const char *key;
    enum type type;
    size_t offset; /* in struct manager_settings */
    const char *meaning;
};

#define AT(field) offsetof(struct manager_settings, field)

static const struct setting settings_list[] = {
    {"socket", TYPE_PATH, AT(socket), "the socket's path, in a folder of mode 0700"},
    {"arena-bytes", TYPE_BYTES, AT(options.arena_bytes), "bytes of each arena"},
    {"arena-count", TYPE_COUNT, AT(options.arena_count), "arenas"},
    {"page-size", TYPE_PAGES, AT(options.page_size), "pages of the arenas"},
    {"numa-node", TYPE_NODE, AT(options.numa_node), "where the arenas' pages lie"},
    {"touch-threads", TYPE_COUNT, AT(options.touch_threads), "threads that touch pages; 0: a node's CPUs"},
    {"index-blocks", TYPE_COUNT, AT(options.index_blocks), "most blocks in the index"},
    {"lease-ttl-ms", TYPE_COUNT, AT(options.lease_ttl_ms), "default and longest life of a lease"},
    {"session-bytes", TYPE_BYTES, AT(options.session_bytes), "bytes that one session may hold; 0: all"},
    {"spin-us", TYPE_COUNT, AT(options.spin_us), "microseconds of watching before sleeping; 0: none"},
    {"software", TYPE_BOOL, AT(options.software), "use the software device even where CUDA is"},
    {"log-level", TYPE_LEVEL, AT(log_level), "least important messages to write"},
};
enum { SETTINGS = sizeof settings_list / sizeof settings_list[0] };

static const char *const page_names[] = {"regular", "2M", "1G"};
static const char *const level_names[] = {"debug", "info", "warning", "error"};

/* What values look like, by type, for help and refusals. */
static const char *const value_forms[] = {
    [TYPE_PATH] = "PATH",
    [TYPE_BYTES] = "BYTES, or with K, M, G or T (powers of 1024)",
    [TYPE_COUNT] = "a number of at most 32 bits",
    [TYPE_NODE] = "a node's number, \"device\" (the first device's) or \"any\"",
    [TYPE_BOOL] = "true or false",
    [TYPE_PAGES] = "regular, 2M or 1G",
    [TYPE_LEVEL] = "debug, info, warning or error",
};

void manager_settings_init(struct manager_settings *settings)
{
    *settings = (struct manager_settings){.log_level = HL_MANAGER_INFO};
    hl_manager_options_init(&settings->options);
    manager_socket_path(settings->socket);
}

/* --- values --- */

static bool parse_number(const char *text, uint64_t *value, const char **rest)
{
    assert(text);
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *value = number;
    *rest = end;
    return errno == 0;
}

static bool parse_bytes(const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    const char *rest;
    if (!parse_number(text, bytes, &rest))
        return false;
    if (*rest == '\0')
        return true;
    const char *suffix = strchr(suffixes, *rest);
    return suffix && rest[1] == '\0' && hl_mul_u64(*bytes, 1ull << (10 * (suffix - suffixes + 1)), bytes);
}

static bool parse_count(const char *text, uint32_t *count)
{
    const char *rest;
    uint64_t value;
    if (!parse_number(text, &value, &rest) || *rest != '\0' || value > UINT32_MAX)
        return false;
    *count = (uint32_t)value;
    return true;
}

static bool parse_node(const char *text, int *node)
{
    uint32_t number;
    assert(text);
    if (strcmp(text, "device") == 0)
        *node = -1;
    else if (strcmp(text, "any") == 0)
        *node = -2;
    else if (parse_count(text, &number) && number <= INT_MAX)
        *node = (int)number;
    else
        return false;
    return true;
}

static bool parse_name(const char *text, const char *const *names, size_t count, int *index)
{
    assert(text);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index = (int)i;
            return true;
        }
    }
    return false;
}

static bool parse_path(const char *text, char path[PATH_MAX])
{
    size_t length = strlen(text);
    if (length == 0 || length >= PATH_MAX)
        return false;
    memcpy(path, text, length + 1);
    return true;
}

static bool parse_value(struct manager_settings *settings, const struct setting *setting, const char *text)
{
    static const char *const truths[] = {"false", "true"};
    void *field = (char *)settings + setting->offset;
    int index = 0;
    switch (setting->type) {
    case TYPE_PATH:
        return parse_path(text, field);
    case TYPE_BYTES:
        return parse_bytes(text, field);
    case TYPE_COUNT:
        return parse_count(text, field);
    case TYPE_NODE:
        return parse_node(text, field);
    case TYPE_BOOL:
        if (!parse_name(text, truths, 2, &index))
            return false;
        *(bool *)field = index == 1;
        return true;
    case TYPE_PAGES:
        return parse_name(text, page_names, 3, field);
    case TYPE_LEVEL:
        if (!parse_name(text, level_names, 4, &index))
            return false;
        *(enum hl_manager_log_level *)field = (enum hl_manager_log_level)index;
        return true;
    }
    return false;
}

static const struct setting *find_setting(const char *key, size_t length)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (strlen(settings_list[i].key) == length && strncmp(settings_list[i].key, key, length) == 0)
            return &settings_list[i];
    return NULL;
}

/* --- the file --- */

static char *trim(char *text)
{
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

static hl_status read_line(struct manager_settings *settings, const char *path, unsigned number, char *line,
                           hl_error *err)
{
    char *key = trim(line);
    if (key[0] == '\0' || key[0] == '#')
        return HL_OK;
    char *equals = strchr(key, '=');
    if (!equals)
        return HL_FAIL(err, HL_E_INVALID, stage, "%.80s line %u: \"%.60s\" is no \"key = value\"", path,
                       number, key);
    *equals = '\0';
    key = trim(key);
    char *value = trim(equals + 1);
    const struct setting *setting = find_setting(key, strlen(key));
    if (!setting)
        return HL_FAIL(err, HL_E_INVALID, stage, "%.80s line %u: there is no setting \"%.60s\"", path, number,
                       key);
    if (!parse_value(settings, setting, value))
        return HL_FAIL(err, HL_E_INVALID, stage, "%.60s line %u: %s is \"%.40s\", expected %s", path, number,
                       key, value, value_forms[setting->type]);
    return HL_OK;
}

static hl_status read_text(struct manager_settings *settings, const char *path, char *text, hl_error *err)
{
    hl_status status = HL_OK;
    unsigned number = 1;
    for (char *line = text; line && status == HL_OK; number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        status = read_line(settings, path, number, line, err);
        line = end;
    }
    return status;
}

static hl_status read_file(struct manager_settings *settings, const char *path, hl_error *err)
{
    char *text = malloc(MANAGER_SETTINGS_BYTES + 1);
    if (!text)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %.80s", path);
    hl_status status;
    FILE *file = fopen(path, "re");
    if (!file) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot open %.100s", path);
        goto free_text;
    }
    size_t size = fread(text, 1, MANAGER_SETTINGS_BYTES + 1, file);
    if (ferror(file))
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot read %.100s", path);
    else if (size > MANAGER_SETTINGS_BYTES || memchr(text, '\0', size))
        status =
            HL_FAIL(err, HL_E_INVALID, stage, "%.100s is no file of settings: over %u bytes, or not text",
                    path, MANAGER_SETTINGS_BYTES);
    else {
        text[size] = '\0';
        status = read_text(settings, path, text, err);
    }
    fclose(file);
free_text:
    free(text);
    return status;
}

/* --- flags --- */

/* A flag in argv: --name VALUE or --name=VALUE; value is NULL for those that have none. */
struct flag {
    const char *name;
    size_t length;
    const char *value;
};

static bool flag_is(const struct flag *flag, const char *name)
{
    return flag->length == strlen(name) && strncmp(flag->name, name, flag->length) == 0;
}

static hl_status next_flag(int argc, char *const argv[], int *at, struct flag *flag, hl_error *err)
{
    const char *word = argv[(*at)++];
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
        return HL_FAIL(err, HL_E_INVALID, stage, "\"%.80s\" is no flag; see --help", word);
    const char *equals = strchr(word, '=');
    *flag = (struct flag){.name = word + 2,
                          .length = equals ? (size_t)(equals - word - 2) : strlen(word + 2),
                          .value = equals ? equals + 1 : NULL};
    if (flag_is(flag, "help") || flag_is(flag, "print-options"))
        return equals ? HL_FAIL(err, HL_E_INVALID, stage, "\"%.80s\": the flag takes no value", word) : HL_OK;
    const struct setting *setting = find_setting(flag->name, flag->length);
    if (!setting && !flag_is(flag, "config"))
        return HL_FAIL(err, HL_E_INVALID, stage, "there is no flag \"%.80s\"; see --help", word);
    const bool optional = setting && setting->type == TYPE_BOOL;
    if (!flag->value && *at < argc && !(optional && strncmp(argv[*at], "--", 2) == 0))
        flag->value = argv[(*at)++];
    if (!flag->value && optional)
        flag->value = "true";
    if (!flag->value)
        return HL_FAIL(err, HL_E_INVALID, stage, "\"%.80s\" needs a value: %s", word,
                       setting ? value_forms[setting->type] : "PATH");
    return HL_OK;
}

static hl_status apply_flag(struct manager_settings *settings, const struct flag *flag, hl_error *err)
{
    if (flag_is(flag, "help"))
        settings->help = true;
    else if (flag_is(flag, "print-options"))
        settings->print_options = true;
    else if (!flag_is(flag, "config")) {
        const struct setting *setting = find_setting(flag->name, flag->length);
        if (!parse_value(settings, setting, flag->value))
            return HL_FAIL(err, HL_E_INVALID, stage, "--%s is \"%.60s\", expected %s", setting->key,
                           flag->value, value_forms[setting->type]);
    }
    return HL_OK;
}

hl_status manager_settings_read(struct manager_settings *settings, int argc, char *const argv[],
                                hl_error *err)
{
    struct flag flag;
    hl_status status = HL_OK;
    /* Files first, in whatever place they are named. */
    for (int at = 1; at < argc && status == HL_OK;) {
        status = next_flag(argc, argv, &at, &flag, err);
        if (status == HL_OK && flag_is(&flag, "config"))
            status = read_file(settings, flag.value, err);
    }
    for (int at = 1; at < argc && status == HL_OK;) {
        status = next_flag(argc, argv, &at, &flag, err);
        if (status == HL_OK)
            status = apply_flag(settings, &flag, err);
    }
    settings->options.socket_path = settings->socket;
    return status;
}

/* --- output --- */

static void print_value(const struct manager_settings *settings, const struct setting *setting, FILE *to)
{
    const void *field = (const char *)settings + setting->offset;
    switch (setting->type) {
    case TYPE_PATH:
        fputs(field, to);
        break;
    case TYPE_BYTES:
        fprintf(to, "%" PRIu64, *(const uint64_t *)field);
        break;
    case TYPE_COUNT:
        fprintf(to, "%" PRIu32, *(const uint32_t *)field);
        break;
    case TYPE_NODE:
        if (*(const int *)field >= 0)
            fprintf(to, "%d", *(const int *)field);
        else
            fputs(*(const int *)field == -1 ? "device" : "any", to);
        break;
    case TYPE_BOOL:
        fputs(*(const bool *)field ? "true" : "false", to);
        break;
    case TYPE_PAGES:
        fputs(page_names[*(const int *)field], to);
        break;
    case TYPE_LEVEL:
        fputs(level_names[*(const enum hl_manager_log_level *)field], to);
        break;
    }
}

void manager_settings_print(const struct manager_settings *settings, FILE *to)
{
    for (size_t i = 0; i < SETTINGS; i++) {
        fprintf(to, "%s = ", settings_list[i].key);
        print_value(settings, &settings_list[i], to);
        fputc('\n', to);
    }
}

void manager_settings_help(FILE *to)
{
    struct manager_settings defaults;
    manager_settings_init(&defaults);
    fputs("Usage: hostlane-manager [--config FILE] [--KEY VALUE]...\n\n"
          "Keeps published KV blocks in pinned host arenas and grants engines the right to copy them.\n"
          "The file has lines \"key = value\" and comments that begin with #; flags win over it.\n\n",
          to);
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct setting *setting = &settings_list[i];
        fprintf(to, "  --%-14s %s\n  %17s%s; default ", setting->key, setting->meaning, "",
                value_forms[setting->type]);
        print_value(&defaults, setting, to);
        fputc('\n', to);
    }
    fputs("  --config         a file of settings\n"
          "  --print-options  write the effective settings and exit\n"
          "  --help           this text\n\n"
          "SIGTERM and SIGINT stop it in good order: it waits for engines that are copying; a second one\n"
          "ends it at once. Exit status: 0 stopped, 1 could not start, 2 wrong usage, 3 stopped with\n"
          "operations in quarantine.\n",
          to);
}
