/** The log-in, at first and when it has ended. */
import { useState } from "preact/hooks";
import { useAction } from "../hooks.js";
import { endsSoon, isKept, isOver, login, logIn, logInWithToken, logOut } from "../session.js";
import { Check, Progress, Text } from "../ui.js";

export function LogIn() {
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [secret, setSecret] = useState("");
  const [isWithToken, setWithToken] = useState(false);
  const [kept, setKept] = useState(false);
  const action = useAction(() =>
    isWithToken ? logInWithToken(secret.trim(), kept) : logIn({ username, password, isKept: kept }),
  );
  return (
    <main class="login">
      <form
        class="panel stack"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <h1>
          <span class="dot" aria-hidden="true" />
          Log in
        </h1>
        <p class="hint">{location.host}</p>
        {isWithToken ? (
          <Text label="API token" type="password" required value={secret} onText={setSecret} />
        ) : (
          <>
            <Text
              label="User name"
              name="username"
              autocomplete="username"
              required
              autoFocus
              value={username}
              onText={setUsername}
            />
            <Text
              label="Password"
              name="password"
              type="password"
              autocomplete="current-password"
              required
              value={password}
              onText={setPassword}
            />
          </>
        )}
        <Check label="Keep me logged in in this tab" checked={kept} onCheck={setKept} />
        <Progress of={action} />
        <button type="submit" class="primary" disabled={action.isRunning}>
          {action.isRunning ? "Logging in…" : "Log in"}
        </button>
        <button
          type="button"
          class="quiet"
          onClick={() => {
            action.clear();
            setWithToken(!isWithToken);
          }}
        >
          {isWithToken ? "Use a password instead" : "Use an API token instead"}
        </button>
      </form>
    </main>
  );
}

/** Says that the log-in has ended or ends soon. It leaves the focus where it is: what is being typed goes on. */
export function LogInAgain() {
  const [password, setPassword] = useState("");
  const user = login.value;
  const action = useAction(async () => {
    await logIn({ username: user?.username ?? "", password, isKept: isKept() });
    setPassword("");
  });
  if (!user || (!isOver.value && !endsSoon.value)) return null;
  return (
    <form
      class={`again ${isOver.value ? "over" : ""}`}
      aria-label="Log in again"
      onSubmit={(event) => {
        event.preventDefault();
        void action.run();
      }}
    >
      <p role="alert">
        {isOver.value
          ? `The log-in of ${user.username} has ended. Nothing is lost: what you typed stays here, and what is under way goes on after the log-in.`
          : `The log-in of ${user.username} ends within five minutes.`}
      </p>
      <Text
        label={`Password of ${user.username}`}
        type="password"
        autocomplete="current-password"
        required
        value={password}
        onText={setPassword}
      />
      <div class="actions">
        <button type="submit" class="primary" disabled={action.isRunning}>
          Log in
        </button>
        <button type="button" onClick={logOut}>
          Log out
        </button>
      </div>
      <Progress of={action} />
    </form>
  );
}
