/* Engines: as victim, as what comes after it, and as visitors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "faults/sweep/sweep.h"
#include "qualification/deaths/holdings.h"
#include "qualification/deaths/player.h"
#include "qualification/deaths/roles.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/tool.h"

#define QUARANTINE_ROOM 16

/* With the device, which may have been made to keep something (player_close() says what it has). */
static int finish(struct player *player, const struct holdings *before, bool good)
{
    const char *point = getenv(HL_SWEEP_POINT), *action = getenv(HL_SWEEP_ACTION);
    /* Memory that the device has refused to unpin is not unmapped under it. */
    const bool pinned =
        point && action && action[0] == 'E' && !strcmp(point, "device_host_unregister_before");
    player_close(player);
    good = good && !player->wrong;
    if (!holdings_are_again(before, pinned)) {
        fprintf(stderr, "the engine has left something behind\n");
        good = false;
    }
    return good ? HL_SWEEP_DONE : ROLE_WRONG;
}

int role_engine(bool may_lose, const char *route)
{
    struct player player;
    struct holdings before;
    const int stage = stage_connect();
    MUST(stage >= 0);
    holdings_take(&before);
    player_open(&player, "player");
    player.route = route;
    const bool good = player_play(&player, stage);
    const bool failed = player.failed && !may_lose;
    const int status = finish(&player, &before, good);
    holdings_free(&before);
    close(stage);
    return status == HL_SWEEP_DONE && failed ? HL_SWEEP_FAILED : status;
}

int role_doomed(void)
{
    struct player player;
    player_open(&player, "doomed");
    player_die_claimed(&player);
    fprintf(stderr, "the doomed engine has no Manager\n");
    return HL_SWEEP_FAILED;
}

static int press(void)
{
    struct player player;
    struct holdings before;
    holdings_take(&before);
    player_open(&player, "visitor");
    const bool good = player_press(&player);
    const int status = finish(&player, &before, good);
    holdings_free(&before);
    return status;
}

int role_visitor(void)
{
    const char *outcome = getenv(HL_SWEEP_OUTCOME);
    if (!outcome || !outcome[0])
        return press();
    hl_status status;
    json_t *answer = tool_ask(HL_ADMIN_CHECK, NULL, 0, &status);
    const bool good = answer && json_is_true(json_object_get(answer, "ok"));
    json_decref(answer);
    return good ? HL_SWEEP_DONE : ROLE_WRONG;
}

/* A tool is told of every operation in quarantine, by an engine that has died and by nobody else. */
static bool release_quarantine(void)
{
    uint64_t operations[QUARANTINE_ROOM][3];
    const char *outcome = getenv(HL_SWEEP_OUTCOME);
    const size_t count = tool_quarantine(operations, QUARANTINE_ROOM);
    if (count > 0 && (!outcome || strcmp(outcome, "killed") != 0)) {
        fprintf(stderr, "%zu operations are in quarantine, and nobody has died\n", count);
        return false;
    }
    for (size_t i = 0; i < count && i < QUARANTINE_ROOM; i++) {
        MUST(tool_release(operations[i], 0) == HL_E_INVALID);
        MUST(tool_release(operations[i], 1) == HL_OK);
        MUST(tool_release(operations[i], 1) == HL_E_NOT_FOUND);
    }
    return tool_quarantine(operations, QUARANTINE_ROOM) == 0;
}

int role_settle(void)
{
    const int first = press();
    if (first != HL_SWEEP_DONE)
        return first;
    return release_quarantine() ? HL_SWEEP_DONE : ROLE_WRONG;
}
