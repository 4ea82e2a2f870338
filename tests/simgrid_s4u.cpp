/* SPDX-License-Identifier: GPL-3.0-or-later */
/* See the header. Nobody catches what SimGrid throws: it ends the process. */
#include "tests/simgrid_s4u.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

/* This header must come after s4u.hpp. */
#include <simgrid/version.h>
#if SIMGRID_VERSION < 33200
#error "SimGrid before 3.32 fails with Wi-Fi links: no referee"
#endif

namespace sg = simgrid::s4u;

/* What the end of an activity does to the number of flows of a side that share. */
struct change {
  int *active;
  int by;
};

struct sort {
  sg::Host *source;
  change begins, ends;
};

struct operation {
  sg::ExecPtr wait;
  sg::CommPtr flow; /* may be null */
};

struct hk_s4u {
  sg::Engine *engine;
  sg::NetZone *root, *zone;
  sg::Host *clock, *sink;
  std::vector<sg::Link *> links, access_points;
  std::deque<sort> sorts; /* activities point to their changes */
  std::vector<operation> operations;
  int active[HK_S4U_SIDES];
};

/* A comm pays its route's latency times the latency factor, then shares, and its share is inversely
 * proportional to the latency without the factor: TCP's unfairness to long round trips. With a
 * factor that leaves nothing to pay, the latency is free to stand for a weight. The others turn off
 * what else CM02 knows of TCP, and tolerances that are too coarse for nanoseconds. */
static const char *const settings[] = {
    "network/model:CM02",     "network/latency-factor:1e-9", "network/bandwidth-factor:1",
    "network/weight-S:0",     "network/TCP-gamma:1e30",      "network/crosstraffic:0",
    "maxmin/precision:1e-10", "surf/precision:1e-12",
};

static const double NS_PER_S = 1e9;

/* SimGrid moves whole bytes, so the fewer of ours one of its is, the better. But the solver knows
 * usage, bytes or air time for a second's latency, as zero by an absolute tolerance,
 * maxmin/precision, for which neither links' rounding may be too large nor access points' use too
 * small. */
static const double UNIT = 100;
static const double LATENCY = 1e6; /* at a weight of one byte a second */

template <class T>
static std::string numbered(const char *what, const T &of) {
  return what + std::to_string(of.size());
}

template <class T>
static int32_t last(const T &of) {
  return static_cast<int32_t>(of.size()) - 1;
}

hk_s4u *hk_s4u_create(int32_t lanes) {
  static char name[] = "referee", quiet[] = "--log=root.thres:warning";
  static char *arguments[] = {name, quiet, nullptr};
  static int n_arguments = 2;
  auto *s = new hk_s4u{};
  s->engine = new sg::Engine(&n_arguments, arguments);
  for (const char *setting : settings) sg::Engine::set_config(std::string(setting));
  s->root = sg::create_full_zone("machine");
  s->zone = sg::create_full_zone("node")->set_parent(s->root);
  s->clock = s->zone->create_host("clock", NS_PER_S)->set_core_count(lanes);
  s->clock->seal();
  s->sink = s->zone->create_host("sink", 1.0);
  s->sink->seal();
  /* A flow begins when its wait, on which alone it depends, has ended. (In 3.32 a comm's own signal
   * is declared, and missing from the library.) */
  sg::Activity::on_completion_cb([](sg::Activity const &any) {
    if (const auto *c = any.get_data<change>()) *c->active += c->by;
  });
  return s;
}

int32_t hk_s4u_link(hk_s4u *s, double bytes_per_s, double mixed_bytes_per_s) {
  auto *link = s->zone->create_link(numbered("link", s->links), bytes_per_s / UNIT);
  if (mixed_bytes_per_s != bytes_per_s) {
    link->set_sharing_policy(sg::Link::SharingPolicy::NONLINEAR, [=](double capacity, int) {
      const bool mixed = s->active[HK_S4U_LEFT] > 0 && s->active[HK_S4U_RIGHT] > 0;
      return mixed ? mixed_bytes_per_s / UNIT : capacity;
    });
  }
  link->seal();
  s->links.push_back(link);
  return last(s->links);
}

int32_t hk_s4u_access_point(hk_s4u *s, const double *bytes_per_s, int32_t levels) {
  std::vector<double> rates(bytes_per_s, bytes_per_s + levels);
  for (double &rate : rates) rate /= UNIT;
  /* Only a zone of its own may have one; routes of others may begin with it all the same. */
  auto *air = sg::create_wifi_zone(numbered("air", s->access_points))->set_parent(s->root);
  auto *point = air->create_link(numbered("access_point", s->access_points), rates);
  point->seal();
  air->seal();
  s->access_points.push_back(point);
  return last(s->access_points);
}

int32_t hk_s4u_add_sort(hk_s4u *s, const hk_s4u_sort *sort) {
  auto *source = s->zone->create_host(numbered("source", s->sorts), 1.0);
  source->seal();
  std::vector<sg::LinkInRoute> route;
  if (sort->access_point >= 0) {
    const auto *point = s->access_points[static_cast<size_t>(sort->access_point)];
    point->set_host_wifi_rate(source, sort->level);
    route.emplace_back(point);
  }
  /* Cap and weight: a link that every comm has to itself. */
  auto *pace = s->zone->create_link(numbered("pace", s->sorts), sort->cap / UNIT);
  pace->set_sharing_policy(sg::Link::SharingPolicy::FATPIPE);
  pace->set_latency(LATENCY / (sort->weight / UNIT));
  pace->seal();
  route.emplace_back(pace);
  for (int32_t i = 0; i < sort->n_links; i++) {
    route.emplace_back(s->links[static_cast<size_t>(sort->links[i])]);
  }
  s->zone->add_route(source->get_netpoint(), s->sink->get_netpoint(), nullptr, nullptr, route,
                     false);
  int *active = &s->active[sort->side];
  s->sorts.push_back({source, {active, 1}, {active, -1}});

  return last(s->sorts);
}

void hk_s4u_seal(hk_s4u *s) {
  s->zone->seal();
  s->root->seal();
}

int32_t hk_s4u_operation(hk_s4u *s, double wait_ns, int32_t sort, double bytes) {
  operation op;
  op.wait = sg::Exec::init()->set_host(s->clock)->set_flops_amount(wait_ns);
  if (sort >= 0) {
    auto &of = s->sorts[static_cast<size_t>(sort)];
    op.flow = sg::Comm::sendto_init(of.source, s->sink);
    op.flow->set_payload_size(static_cast<uint64_t>(std::max(1.0, std::round(bytes / UNIT))));
    op.wait->set_data(&of.begins);
    op.flow->set_data(&of.ends);
    op.wait->add_successor(op.flow);
  }
  s->operations.push_back(op);
  return last(s->operations);
}

void hk_s4u_after(hk_s4u *s, int32_t first, int32_t then) {
  const auto &before = s->operations[static_cast<size_t>(first)];
  const auto &after = s->operations[static_cast<size_t>(then)].wait;
  if (before.flow) {
    before.flow->add_successor(after);
  } else {
    before.wait->add_successor(after);
  }
}

double hk_s4u_run(hk_s4u *s, int64_t *activities) {
  const double begin = sg::Engine::get_clock();
  *activities = 0;
  for (const auto &op : s->operations) {
    *activities += op.flow ? 2 : 1;
    if (op.wait->dependencies_solved()) op.wait->vetoable_start();
  }
  s->engine->run();
  s->operations.clear();
  return sg::Engine::get_clock() - begin;
}
