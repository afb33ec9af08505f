/* A scene whose engine works on a device with gates: the calls by which the executor hands copies to the
 * device can be stopped, refused, or followed by a hold of the stream, and registrations of host memory can
 * be refused. The device behind it is the real one, so the same scenarios run on a GPU. */
#ifndef QUALIFICATION_SCENARIOS_GATED_H
#define QUALIFICATION_SCENARIOS_GATED_H

#include "qualification/restore/scene.h"

/* Which copies are meant: those into the device on the engine's copy stream, from the arming on; the first is
 * number 1, and 0 is none. */
struct gated_plan {
    uint32_t stop_after;  /* its submission does not return until gated_go() */
    uint32_t hold_before; /* the stream stands still before it until world_let_go() */
    uint32_t refuse;      /* reports HL_E_DEVICE */
    bool taken;           /* though the device has got it; else it has not */
};

/* As scene_open_with(); the engine goes by copy engines, a call a layer or more. One scene at a time. */
void gated_open(struct scene *scene, const struct manager_settings_of_a_test *settings,
                const struct world_options *world);
/* The same without the registration. */
void gated_connect(struct scene *scene, const struct manager_settings_of_a_test *settings,
                   const struct world_options *world);
hl_status gated_register(struct scene *scene);

void gated_arm(struct scene *scene, const struct gated_plan *plan);
/* How many copies there were since. */
uint32_t gated_count(void);
/* Waits until a call stands at stop_after, or has been refused. */
void gated_await(void);
void gated_go(void);
/* The n-th registration of host memory from now on is refused as by a device without memory; 0: none. */
void gated_refuse_registration(uint32_t nth);
/* Registrations since. */
uint32_t gated_registrations(void);

#endif
