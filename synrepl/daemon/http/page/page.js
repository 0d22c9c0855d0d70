// Shows /status, once a second. All text goes in as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
const HISTORY = 60;
const number = new Intl.NumberFormat("en");
const at = (id) => document.getElementById(id);

let secret = sessionStorage.getItem("synrepl-secret");
let warnings = []; // of the last answer of /ready
let before = null; // {when, published} of the last poll
const history = []; // rows per second

function el(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (className) made.className = className;
  return made;
}

function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function fill(table, head, rows) {
  const line = el("tr");
  for (const [title, kind] of head) line.append(el("th", title, kind));
  const lines = rows.map((cells) => {
    const row = el("tr");
    cells.forEach((cell, n) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell];
      const made = el("td", text, [head[n][1], kind].filter(Boolean).join(" "));
      made.dataset.title = head[n][0]; // shown where a window is too narrow for columns
      row.append(made);
    });
    return row;
  });
  table.replaceChildren(line, ...lines);
}

function tile(title, value, className) {
  const item = el("li", title, "");
  item.prepend(el("b", value, className));
  return item;
}

function graph(values) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(1, ...values);
  const start = HISTORY - values.length;
  const points = values.map((value, n) => `${start + n},${97 - (94 * value) / top}`);
  const line = document.createElementNS(ns, "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

function urgency(seconds) {
  return seconds > 60 ? "bad" : seconds > 5 ? "warn" : "";
}

// What went by, per stream: published by a master, dealt with by a worker.
function totals(status) {
  if (status.role === "worker") return { ...status.counts.rows };
  return Object.fromEntries(Object.entries(status.published).map(([name, n]) => [name, n.rows]));
}

function rates(status, when) {
  const now = totals(status);
  const found = {};
  if (before) {
    const seconds = Math.max(0.001, (when - before.when) / 1000);
    for (const [name, rows] of Object.entries(now)) {
      found[name] = Math.max(0, rows - (before.totals[name] ?? 0)) / seconds;
    }
    history.push(Object.values(found).reduce((sum, rate) => sum + rate, 0));
    if (history.length > HISTORY) history.shift();
  }
  before = { when, totals: now };
  return found;
}

function showFacts(status) {
  const lags = Object.values(status.streams).map((stream) => stream.lag_seconds);
  const worst = Math.max(0, ...lags);
  const rate = tile("rows a second", number.format(Math.round(history.at(-1) ?? 0)));
  rate.append(graph(history));
  const tiles = [rate, tile("largest lag", duration(worst), urgency(worst))];
  if (status.role === "master") {
    const up = status.database.state === "ok";
    tiles.push(
      tile("followers", status.followers.length),
      tile("database", status.database.state, up ? "good" : "bad"),
      tile(`writer ${status.writer.name}`, status.writer.open ? "holds its name" : "lost its name",
        status.writer.open ? "good" : "bad"),
    );
  } else {
    tiles.push(
      ...(status.bus ? [] : [tile("master", status.connected ? "connected" : "away",
        status.connected ? "good" : "bad")]),
      tile("rows waiting", number.format(status.waiting_rows)),
      tile("failing handlers", number.format((status.failing ?? []).length),
        status.failing?.length ? "bad" : ""),
      tile("dead letters", number.format(status.dead_letters?.count ?? 0),
        status.dead_letters?.count ? "warn" : ""),
    );
  }
  if (status.syncing_users?.count) {
    tiles.push(tile("users syncing", number.format(status.syncing_users.count)));
  }
  const federation = status.federation;
  if (federation) {
    tiles.push(tile(`federation held by ${federation.held_by}`,
      federation.floor === null ? "never acknowledged" : `from ${number.format(federation.floor)}`,
      federation.lost_upto === null ? "" : "bad"));
  }
  const bus = status.bus;
  if (bus) {
    tiles.push(tile(`Redis ${bus.where}`, bus.connected ? "connected" : "away", bus.connected ? "good" : "bad"));
  }
  tiles.push(tile("up", duration(status.uptime_s)));
  at("facts").replaceChildren(...tiles);
  const errors = [status.database?.error, bus && !bus.connected ? `no bus: ${bus.fault}` : null,
    ...(status.failing ?? []).map((failure) => failure.sentence),
    ...warnings,
    ...(status.slow_clients?.latest ?? []).filter((c) => c.ago_s < 600).map((c) =>
      `slow client ${c.name} at ${c.address} was cut off ${duration(c.ago_s)} ago:`
      + ` ${number.format(c.queued_lines)} lines waited for it`)];
  at("reasons").replaceChildren(...errors.filter(Boolean).map((error) => el("li", error)));
}

function writers(stream, master) {
  return Object.entries(stream.writers)
    .map(([name, w]) => (master ? `${name} ${number.format(w)}`
      : `${name} ${w.position ?? "–"} of ${w.heard}`))
    .join(", ");
}

function showStreams(status, rate) {
  const master = status.role === "master";
  const head = [["stream"], [master ? "position" : "", "number"], ["writers"], ["behind, rows", "number"],
    ["behind, time", "number"], ["rows a second", "number"], [master ? "trimmed" : "", "number"],
    [master ? "held by" : ""]];
  const rows = Object.entries(status.streams)
    .filter(([, s]) => at("all").checked || s.lag_rows > 0
      || (master ? s.position > 0 : Object.values(s.writers).some((w) => w.heard)))
    .map(([name, s]) => {
      const oldest = s.oldest_open_reservation;
      const held = oldest && s.lag_rows
        ? `${s.held_by.join(", ")} (for ${duration(oldest.seconds)}: ${oldest.describe})`
        : (s.held_by ?? []).join(", ");
      return [
        name,
        master ? number.format(s.position) : "",
        [writers(s, master), "soft"],
        number.format(s.lag_rows),
        [duration(s.lag_seconds), urgency(s.lag_seconds)],
        rate[name] === undefined ? "" : number.format(Math.round(rate[name])),
        s.trimmed?.upto ? number.format(s.trimmed.upto) : "",
        [held, "soft"],
      ];
    });
  fill(at("streams"), head, rows);
}

function showFollowers(followers) {
  at("followers-section").hidden = !followers;
  if (!followers) return;
  fill(
    at("followers"),
    [["name"], ["address"], ["dialect"], ["streams"], ["catching up"], ["queued lines", "number"],
      ["connected", "number"]],
    followers.map((f) => [
      f.name, f.address, f.dialect ?? "not settled", f.streams === null ? "all" : f.streams.join(", "),
      f.catching_up.join(", "), number.format(f.queued_lines), duration(f.connected_s),
    ]),
  );
}

function showNamed(followers) {
  at("named-section").hidden = !followers?.length;
  const kinds = { missing: "bad", stuck: "bad", behind: "warn" };
  fill(
    at("named"),
    [["name"], ["health", "word"], ["behind, rows", "number"], ["behind, time", "number"],
      ["last sign, ago", "number"], ["what is wrong"]],
    (followers ?? []).map((f) => [
      f.name, [f.health, kinds[f.health]], number.format(f.lag_rows), duration(f.lag_seconds),
      f.seen_s === null ? "–" : duration(f.seen_s), [f.trouble, "soft"],
    ]),
  );
}

// Which servers could not help with a partial room, and why.
function refusals(asked) {
  return asked.filter((s) => s.code !== "ok").map((s) => `${s.destination}: ${s.reason}`).join("; ");
}

function showPartialRooms(partial) {
  at("partial-section").hidden = !partial?.rooms;
  fill(
    at("partial"),
    [["room"], ["what is done"], ["servers", "number"], ["to judge", "number"], ["since", "number"],
      ["ready in", "number"], ["worked on by"], ["could not help"]],
    (partial?.shown ?? []).map((r) => [
      r.room_id, [r.sentence, r.stands_still ? "bad" : r.reason ? "warn" : "soft"],
      number.format(r.servers), number.format(r.left), duration(r.age_s),
      r.eta_s === null ? "–" : duration(r.eta_s), r.owner ?? "",
      refusals(r.servers_asked),
    ]),
  );
}

// Where a handler started: it does not get facts up to there.
function startsAt(handler) {
  const places = {};
  for (const [stream, writers] of Object.entries(handler.streams)) {
    for (const [writer, at] of Object.entries(writers)) {
      if (!at.started_from) continue;
      (places[at.started_from] ??= []).push(writer === "(all)" ? stream : `${stream} of ${writer}`);
    }
  }
  const starts = Object.entries(places).map(([token, of]) => `${number.format(Number(token))} in ${some(of)}`);
  return some(starts, "; ") || "oldest fact";
}

function some(texts, separator = ", ", most = 4) {
  const more = texts.length > most ? `${separator}${texts.length - most} more` : "";
  return texts.slice(0, most).join(separator) + more;
}

function showHandlers(handlers, letters) {
  at("handlers-section").hidden = !handlers?.length;
  if (!handlers?.length) return;
  fill(
    at("handlers"),
    [["handler"], ["view"], ["exactly once"], ["starts at"], ["catching up"], ["failures", "number"],
      ["dead letters", "number"]],
    handlers.map((h) => [
      [h.name, h.failing ? "bad" : ""], h.view, h.exactly_once ? "yes" : "no", startsAt(h),
      h.catching_up.join(", "), number.format(h.failures),
      [number.format(h.dead_letters), h.dead_letters ? "warn" : ""],
    ]),
  );
  at("letters").hidden = !letters?.newest?.length;
  fill(
    at("letters"),
    [["dead letter of"], ["stream"], ["writer"], ["token", "number"], ["stored at"],
      ["attempts", "number"], ["error"]],
    (letters?.newest ?? []).map((l) => [
      l.handler, l.stream, l.writer || "(all)", number.format(l.token), l.set_aside_at,
      number.format(l.attempts), `${l.error}: ${l.message}`,
    ]),
  );
}

function showCaches(section) {
  const caches = Object.entries(section?.by_name ?? {});
  at("caches-section").hidden = !caches.length;
  fill(
    at("caches"),
    [["cache"], ["entries", "number"], ["hits", "number"], ["misses", "number"], ["hit rate", "number"],
      ["evictions", "number"], ["invalidations", "number"]],
    caches.map(([name, c]) => [
      name, number.format(c.size), number.format(c.hits), number.format(c.misses),
      c.hits + c.misses ? `${Math.round((100 * c.hits) / (c.hits + c.misses))} %` : "",
      number.format(c.evictions), number.format(c.invalidations),
    ]),
  );
}

function showCounters(status) {
  const rows = [];
  const add = (what, counts) => {
    for (const [name, count] of Object.entries(counts ?? {})) rows.push([what, name, number.format(count)]);
  };
  add("commands received", status.commands);
  if (status.bus) {
    const { connections, echoes, bad } = status.bus;
    add("bus", { connections, echoes, "bad messages": bad });
    add("received on the bus", status.bus.commands);
  }
  add("connections closed", status.close_reasons);
  add("users syncing through", status.syncing_users?.by_instance);
  add("servers of partial rooms", status.rooms?.partial?.attempts);
  if (status.sending) add("commands", { unsent: status.sending.unsent });
  for (const [sender, token] of Object.entries(status.federation?.senders ?? {})) {
    rows.push(["federation acknowledged by", sender, token === null ? "nothing" : number.format(token)]);
  }
  for (const [stream, outcomes] of Object.entries(status.appends ?? {})) {
    add(`appends to ${stream}`, outcomes);
  }
  add("cache rows applied", status.caches?.rows);
  for (const [name, counts] of Object.entries(status.counts ?? {})) add(name.replace("_", " "), counts);
  fill(at("counters"), [["what"], ["which"], ["how many", "number"]], rows);
}

function show(status, when) {
  const rate = rates(status, when);
  at("server").textContent = status.server_name;
  at("instance").textContent = `${status.role} ${status.instance_name}, synrepl ${status.version}`;
  document.title = `${status.instance_name} · synrepl`;
  showFacts(status);
  showStreams(status, rate);
  showFollowers(status.followers);
  showNamed(status.named_followers);
  showPartialRooms(status.rooms?.partial);
  showHandlers(status.handlers, status.dead_letters);
  showCaches(status.caches);
  showCounters(status);
}

function say(text, className) {
  at("state").textContent = text;
  at("state").className = className;
}

async function get(path) {
  const headers = secret ? { Authorization: `Bearer ${secret}` } : {};
  return fetch(path, { headers, signal: AbortSignal.timeout(10_000) });
}

async function poll() {
  const answer = await get("/status");
  at("secret-form").hidden = answer.status !== 401;
  at("main").hidden = answer.status === 401;
  if (answer.status === 401) {
    say("locked", "warn");
    return false;
  }
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const ready = await (await get("/ready")).json();
  warnings = ready.warnings ?? [];
  show(await answer.json(), performance.now());
  say(ready.ready ? "ready" : `not ready: ${ready.reasons.join("; ")}`, ready.ready ? "good" : "bad");
  return true;
}

async function run() {
  let again = true;
  try {
    if (!document.hidden) again = await poll();
  } catch (error) {
    say(`no answer (${error.message})`, "bad");
  }
  if (again) setTimeout(run, PERIOD_MS);
}

at("secret-form").addEventListener("submit", (event) => {
  event.preventDefault();
  secret = at("secret").value;
  sessionStorage.setItem("synrepl-secret", secret);
  run();
});

run();
