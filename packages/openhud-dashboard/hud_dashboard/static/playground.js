// Playground: the conversation is held by this page. Turns are streamed from the gateway; tool calls are executed in the
// open environment, and the model continues, for a bounded number of rounds.

const MOST_ROUNDS = 12;
const $ = (id) => document.getElementById(id);
// Escape invisible characters and those that change the direction of text, except tabs and line ends.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
let messages = [];
let world = null;
let wanted = "";
let asking = null;
let conversation = newId(); // For ratings.
let task = null; // {graded}: the task started in the environment.

// 32 hexadecimal digits; crypto.randomUUID is absent on addresses without TLS.
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function visible(text) {
  return text.replace(HIDDEN, (one) => `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = visible(text);
  return made;
}

async function post(place, body) {
  const answer = await fetch(place, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.detail ?? `The server responded with status ${answer.status}.`);
  return data;
}

// -- the environment ----------------------------------------------------------------------------------------------

async function openWorld() {
  const path = $("world-path")?.value.trim() ?? "", environment = path ? "" : $("environment").value;
  const now = `${path}\n${environment}`;
  if (now === wanted) return world;
  closeWorld();
  wanted = now;
  if (!path && !environment) return null;
  $("world").className = "hint";
  $("world").textContent = "Starting the environment…";
  try {
    world = await post("/playground/worlds", { environment, path });
    showWorld();
  } catch (error) {
    wanted = "";
    $("world").className = "hint bad";
    $("world").textContent = visible(error.message);
    throw error;
  }
  return world;
}

function showWorld() {
  const names = world.tools.map((tool) => tool.function.name);
  $("world").className = "hint";
  $("world").textContent = visible(names.length ? `${world.name}: ${names.join(", ")}` : `${world.name} has no tools.`);
  $("template").replaceChildren(...world.templates.map((one) => new Option(visible(one.id), one.id)));
  $("start").hidden = !world.templates.length;
}

function closeWorld() {
  if (world) fetch(`/playground/worlds/${world.id}/close`, { method: "POST", keepalive: true });
  world = null;
  wanted = "";
  task = null;
  $("world").textContent = "";
  $("start").hidden = true;
  offer();
}

// -- the task --------------------------------------------------------------------------------------------------------

// Start the environment of a taskset's task, and the task in it.
async function loadTask() {
  forget();
  const chosen = { taskset: $("taskset").value, task: $("task").value };
  await tell("Starting the environment…", async () => {
    world = await post("/playground/worlds", chosen);
    if ($("world-path")) $("world-path").value = "";
    $("environment").value = world.name;
    wanted = `\n${$("environment").value}`;
    showWorld();
    showTask(world.prompt, world.verified);
  });
}

// Start a template of the open environment, with the entered arguments.
async function startTask() {
  const open = world;
  await tell("Starting the task…", async () => {
    const started = await post(`/playground/worlds/${open.id}/task`, { template: $("template").value, arguments: JSON.parse($("arguments").value || "{}") });
    messages = [];
    conversation = newId();
    $("turns").replaceChildren();
    showTask(started.prompt, false);
  });
}

function showTask(prompt, verified) {
  task = { graded: false };
  messages = prompt.map(({ role, content }) => ({ role, content }));
  for (const { role, content } of prompt) show(role === "user" ? "Task" : role, content).classList.add("user");
  $("task-said").textContent = verified ? "The task's verifier is not used here: the reward is from its environment only." : "Let the model answer, or send a message first.";
  offer();
}

async function gradeAnswer() {
  const last = messages.at(-1);
  await tell("Grading…", async () => {
    const grade = await post(`/playground/worlds/${world.id}/grade`, { answer: last.content ?? "" });
    task.graded = true;
    const turn = show("Grade", grade.content ?? "");
    turn.classList.add("grade");
    turn.querySelector("h2 span").textContent = grade.reward === null ? "not measured" : `reward ${grade.reward.toFixed(3)}`;
    const parts = element("ul");
    for (const part of grade.parts ?? []) parts.append(element("li", "", `${part.name}: ${part.value === null ? "–" : part.value.toFixed(3)}${part.reason ? ` (${part.reason})` : ""}`));
    if (parts.children.length) turn.append(parts);
    $("task-said").textContent = "Graded. Load the task again to try once more.";
  });
}

// Rate the conversation up to its last answer, which records it as a run.
async function rate(up) {
  const system = $("system").value.trim();
  const opening = system ? [{ role: "system", content: system }] : [];
  $("rated").className = "muted";
  $("rated").textContent = "Recording…";
  try {
    const run = await post("/playground/rating", { id: conversation, model: $("model").value, checkpoint: $("checkpoint").value || null, messages: [...opening, ...messages], up });
    $("up").setAttribute("aria-pressed", String(up));
    $("down").setAttribute("aria-pressed", String(!up));
    const link = element("a", "", "Recorded as a run");
    link.href = `/trace/${run.trace_id}`;
    $("rated").replaceChildren(link);
  } catch (error) {
    $("rated").className = "bad";
    $("rated").textContent = visible(error.message);
  }
}

function unrated() {
  for (const id of ["up", "down"]) $(id).setAttribute("aria-pressed", "false");
  $("rated").replaceChildren();
}

// Run an action of the task; errors are shown next to it.
async function tell(meanwhile, work) {
  $("task-said").className = "hint muted";
  $("task-said").textContent = meanwhile;
  busy(true, false);
  try {
    await work();
  } catch (error) {
    $("task-said").className = "hint bad";
    $("task-said").textContent = visible(error.message);
  } finally {
    busy(false);
    offer();
  }
}

// Enable the buttons that are available in the current state.
function offer() {
  const last = messages.at(-1), waits = Boolean(task) && last?.role !== "assistant";
  $("text").required = !waits;
  $("send").textContent = waits ? "Let it answer" : "Send";
  $("thumbs").hidden = !(last?.role === "assistant" && !last.tool_calls);
  $("grade").hidden = !(task && !task.graded && last?.role === "assistant" && !last.tool_calls);
}

function forget() {
  asking?.abort();
  messages = [];
  conversation = newId();
  $("turns").replaceChildren();
  closeWorld();
}

// -- what is shown -------------------------------------------------------------------------------------------------

function show(role, text) {
  $("nothing")?.remove();
  const turn = element("article", `turn ${role === "You" ? "user" : ""}`);
  const head = element("h2", "", role);
  head.append(element("span"));
  turn.append(head, element("div", "said", text ?? ""));
  $("turns").append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

function showReasoning(turn, text) {
  let place = turn.querySelector("details");
  if (!place) {
    place = element("details");
    place.append(element("summary", "", "Reasoning"), element("div", "said"));
    turn.querySelector(".said").before(place);
  }
  place.querySelector(".said").textContent = visible(text);
}

function showCall(turn, call) {
  const shown = element("div", "call");
  shown.append(element("b", "", call.function.name), element("pre", "", call.function.arguments || "{}"));
  turn.append(shown);
  return shown;
}

// -- a turn ----------------------------------------------------------------------------------------------------------

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function request(tools) {
  const system = $("system").value.trim();
  const body = {
    model: $("model").value,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
  };
  if ($("checkpoint").value) body.checkpoint = $("checkpoint").value;
  if (tools?.length) body.tools = tools;
  return body;
}

async function ask(turn, tools) {
  const answer = await fetch("/playground/turn", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(request(tools)),
    signal: asking.signal,
  });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error?.message ?? said.detail ?? `The server responded with status ${answer.status}.`);
  }
  const said = turn.querySelector(".said:last-child") ?? turn.querySelector(".said");
  const message = { role: "assistant", content: "" };
  const calls = [];
  let reasoning = "", ending = "";
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) tellUsage(turn, event.usage, ending);
    const choice = event.choices?.[0];
    if (!choice) continue;
    ending = choice.finish_reason ?? ending;
    const delta = choice.delta ?? {};
    if (delta.content) said.textContent = visible((message.content += delta.content));
    if (delta.reasoning_content) showReasoning(turn, (reasoning += delta.reasoning_content));
    for (const part of delta.tool_calls ?? []) {
      const call = (calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
      call.id ||= part.id ?? "";
      call.function.name ||= part.function?.name ?? "";
      call.function.arguments += part.function?.arguments ?? "";
    }
  }
  if (calls.length) message.tool_calls = calls;
  if (!message.content) message.content = null;
  return message;
}

function tellUsage(turn, usage, ending) {
  const cut = ending === "length" ? ", cut at the limit" : "";
  turn.querySelector("h2 span").textContent = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens${cut}`;
}

async function answerCalls(turn, calls) {
  for (const call of calls) {
    const shown = showCall(turn, call);
    let result;
    try {
      if (!world) throw new Error("No environment is open to execute this call.");
      result = await post(`/playground/worlds/${world.id}/call`, { name: call.function.name, arguments: call.function.arguments });
    } catch (error) {
      result = { text: error.message, is_error: true, pictures: 0 };
    }
    const pictures = result.pictures ? `\n[${result.pictures} pictures, which are not shown to the model here]` : "";
    shown.classList.toggle("wrong", result.is_error);
    shown.append(element("pre", "answer", result.text + pictures));
    messages.push({ role: "tool", tool_call_id: call.id, content: result.text });
  }
}

async function say(text) {
  if (text) {
    messages.push({ role: "user", content: text });
    show("You", text);
  }
  unrated();
  asking = new AbortController();
  busy(true);
  let turn;
  try {
    const open = await openWorld();
    for (let round = 0; round < MOST_ROUNDS; round++) {
      turn = show($("model").value);
      turn.classList.add("under-way");
      const message = await ask(turn, open?.tools);
      turn.classList.remove("under-way");
      messages.push(message);
      if (!message.tool_calls) break;
      await answerCalls(turn, message.tool_calls);
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    turn ??= show($("model").value);
    const heard = turn.querySelector(":scope > .said");
    if (stopped && heard.textContent) messages.push({ role: "assistant", content: heard.textContent });
    turn.classList.toggle("failed", !stopped);
    turn.append(element("p", stopped ? "muted" : "bad", stopped ? "Stopped." : error.message));
  } finally {
    turn?.classList.remove("under-way");
    busy(false);
    offer();
  }
}

function busy(yes, stoppable = true) {
  for (const id of ["send", "grade", "load", "begin"]) if ($(id)) $(id).disabled = yes;
  $("stop").hidden = !yes || !stoppable;
  if (!yes) $("text").focus();
}

if ($("say")) {
  $("say").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("text").value.trim();
    if ((!text && $("text").required) || $("send").disabled) return;
    if (!$("model").value) {
      $("model").focus();
      return;
    }
    $("text").value = "";
    say(text);
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("say").requestSubmit();
  });
  $("stop").addEventListener("click", () => asking?.abort());
  $("again").addEventListener("click", forget);
  $("grade").addEventListener("click", gradeAnswer);
  $("up").addEventListener("click", () => rate(true));
  $("down").addEventListener("click", () => rate(false));
  $("setup").addEventListener("click", (event) => {
    if (event.target.id === "load") loadTask();
    else if (event.target.id === "begin") startTask();
  });
  $("setup").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["environment", "world-path"]) $(id)?.addEventListener("change", () => openWorld().catch(() => {}));
  window.addEventListener("pagehide", closeWorld);
}
