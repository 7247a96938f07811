// Follows the session: replaces what the page shows after each event, at most every two seconds.
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const main = () => document.querySelector("main");
const say = (text) => { document.getElementById("state").textContent = text; };

async function refresh() {
  const answer = await fetch("./");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.ok) main().replaceWith(page.querySelector("main"));
}

const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname); // the token stays neither in the address nor in the history
  const answer = await fetch("cookie", { headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) say((await answer.json()).detail);
}
if (!main().dataset.version) await refresh(); // also if a link from elsewhere has come without the cookie
while (main().dataset.version) {
  try {
    const news = await fetch(`v1/events?after=${main().dataset.version}&limit=1&wait=50`);
    if (news.status === 401) await refresh();
    else if (!news.ok) throw new Error(news.status);
    else if (await news.text()) await refresh();
    say("");
  } catch {
    say("The service does not answer; this is what it said last.");
  }
  await pause(2);
}
