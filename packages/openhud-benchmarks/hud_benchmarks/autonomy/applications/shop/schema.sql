CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    login TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
);
CREATE TABLE products (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    thing TEXT NOT NULL,
    brand TEXT NOT NULL,
    category TEXT NOT NULL,
    rating REAL NOT NULL,
    summary TEXT NOT NULL
);
-- Amounts are in cents.
CREATE TABLE variants (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    product_id INTEGER NOT NULL REFERENCES products,
    name TEXT NOT NULL,
    price INTEGER NOT NULL,
    stock INTEGER NOT NULL
);
CREATE TABLE coupons (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    code TEXT NOT NULL UNIQUE,
    percent INTEGER NOT NULL,
    category TEXT NOT NULL DEFAULT '',
    minimum INTEGER NOT NULL DEFAULT 0,
    until TEXT NOT NULL
);
CREATE TABLE addresses (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    recipient TEXT NOT NULL,
    street TEXT NOT NULL,
    postcode TEXT NOT NULL,
    city TEXT NOT NULL,
    preferred INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE cart_lines (
    variant_id INTEGER NOT NULL UNIQUE REFERENCES variants,
    quantity INTEGER NOT NULL CHECK (quantity > 0)
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    placed TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'shipped', 'delivered', 'cancelled')),
    recipient TEXT NOT NULL,
    street TEXT NOT NULL,
    postcode TEXT NOT NULL,
    city TEXT NOT NULL,
    delivery TEXT NOT NULL,
    payment TEXT NOT NULL,
    gift_message TEXT NOT NULL DEFAULT '',
    coupon TEXT NOT NULL DEFAULT '',
    goods INTEGER NOT NULL,
    discount INTEGER NOT NULL,
    shipping INTEGER NOT NULL,
    cancellation TEXT NOT NULL DEFAULT ''
);
CREATE TABLE order_lines (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    order_id INTEGER NOT NULL REFERENCES orders,
    variant_id INTEGER NOT NULL REFERENCES variants,
    quantity INTEGER NOT NULL,
    price INTEGER NOT NULL
);
CREATE TABLE returns (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    order_id INTEGER NOT NULL REFERENCES orders,
    reason TEXT NOT NULL,
    refund TEXT NOT NULL,
    requested TEXT NOT NULL
);
CREATE TABLE return_lines (
    return_id INTEGER NOT NULL REFERENCES returns,
    line_id INTEGER NOT NULL UNIQUE REFERENCES order_lines
);
CREATE TABLE lists (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE list_items (
    list_id INTEGER NOT NULL REFERENCES lists,
    variant_id INTEGER NOT NULL REFERENCES variants,
    UNIQUE (list_id, variant_id)
);
CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    variant_id INTEGER NOT NULL REFERENCES variants,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    weeks INTEGER NOT NULL,
    next_delivery TEXT NOT NULL,
    address_id INTEGER NOT NULL REFERENCES addresses,
    status TEXT NOT NULL CHECK (status IN ('active', 'paused', 'cancelled'))
);
