CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    login TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
);
CREATE TABLE settings (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    section TEXT NOT NULL,
    name TEXT NOT NULL UNIQUE,
    value TEXT NOT NULL
);
CREATE TABLE roles (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE permissions (
    role_id INTEGER NOT NULL REFERENCES roles ON DELETE CASCADE,
    name TEXT NOT NULL,
    UNIQUE (role_id, name)
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    email TEXT NOT NULL UNIQUE,
    role_id INTEGER NOT NULL REFERENCES roles,
    team_id INTEGER NOT NULL REFERENCES teams,
    status TEXT NOT NULL CHECK (status IN ('active', 'invited', 'suspended')),
    second_factor TEXT NOT NULL CHECK (second_factor IN ('none', 'app', 'key'))
);
CREATE TABLE teams (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    lead_id INTEGER REFERENCES members
);
CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    owner_id INTEGER REFERENCES members ON DELETE SET NULL,
    network TEXT NOT NULL,
    expires TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'revoked'))
);
CREATE TABLE scopes (
    key_id INTEGER NOT NULL REFERENCES keys,
    name TEXT NOT NULL,
    UNIQUE (key_id, name)
);
CREATE TABLE integrations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    owner_id INTEGER REFERENCES members,
    channel TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL CHECK (status IN ('connected', 'off'))
);
CREATE TABLE subscriptions (
    integration_id INTEGER NOT NULL REFERENCES integrations,
    event TEXT NOT NULL,
    UNIQUE (integration_id, event)
);
CREATE TABLE notifications (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    audience TEXT NOT NULL,
    event TEXT NOT NULL,
    channel TEXT NOT NULL,
    pace TEXT NOT NULL CHECK (pace IN ('off', 'at once', 'daily', 'weekly')),
    UNIQUE (audience, event, channel)
);
CREATE TABLE retention (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL UNIQUE,
    days INTEGER NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('delete', 'archive')),
    hold_id INTEGER REFERENCES teams,
    items INTEGER NOT NULL
);
